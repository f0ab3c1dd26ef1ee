"""The megatron engine."""
