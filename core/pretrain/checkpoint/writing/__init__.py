"""Writing of checkpoints, at once or while the training goes on."""
