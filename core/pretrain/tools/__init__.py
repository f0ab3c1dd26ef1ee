"""Tools that stand on the trainer, which asks a few of them by name and imports none."""
