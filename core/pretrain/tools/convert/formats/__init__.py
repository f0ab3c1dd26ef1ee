"""Formats of checkpoints, ours and other programs': one file for each."""
