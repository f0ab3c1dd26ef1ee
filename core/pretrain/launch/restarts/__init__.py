"""Restarts: ranks that have failed are started again from the last checkpoint, as often as `--max-restarts` says."""
