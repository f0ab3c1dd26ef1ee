"""Megatron's token files (.bin and .idx): reading, writing, inspection and repair."""
