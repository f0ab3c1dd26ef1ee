"""`pretrain doctor`: checks of a machine, or of several, before a training."""
