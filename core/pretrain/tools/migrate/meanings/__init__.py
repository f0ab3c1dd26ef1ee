"""Configurations of other systems: DeepSpeed JSON files, and flags of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX."""
