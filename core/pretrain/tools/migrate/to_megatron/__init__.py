"""The other way: arguments of Megatron-LM's pretrain_gpt.py out of a recipe."""
