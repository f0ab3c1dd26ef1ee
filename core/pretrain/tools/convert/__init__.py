"""Checkpoints of other programs and of this one: recognized, read, verified and converted."""
