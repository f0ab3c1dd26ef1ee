"""The loop: steps, evaluation, checkpoints and the reasons to stop; `run.train` is the composition root."""
