"""`pretrain doctor`: checks machines before a training."""
