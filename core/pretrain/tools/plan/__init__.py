"""`pretrain plan`: memory and time of a training step, from the real step on torch's fake tensors."""
