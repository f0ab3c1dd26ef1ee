"""Flags of Megatron-LM, of programs made of it, and the keys of a recipe that they become."""
