"""What steps the optimizer: the Engine protocol and the megatron engine."""
