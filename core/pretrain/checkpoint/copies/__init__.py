"""Copies of a run's state on the disks of its nodes, between its checkpoints."""
