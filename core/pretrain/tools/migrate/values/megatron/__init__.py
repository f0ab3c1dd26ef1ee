"""Values of a recipe's keys that several flags of Megatron-LM or of a Megatron-DeepSpeed make together."""
