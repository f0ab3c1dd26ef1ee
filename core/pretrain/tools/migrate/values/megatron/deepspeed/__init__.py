"""Values that DeepSpeed takes from its file under Megatron-DeepSpeed."""
