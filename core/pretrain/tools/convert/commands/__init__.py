"""`pretrain checkpoint`: look into checkpoints of this program and of others, verify and convert them."""
