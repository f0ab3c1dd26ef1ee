"""Python processes that are forked from one that has imported torch and megatron-core, instead of started."""
