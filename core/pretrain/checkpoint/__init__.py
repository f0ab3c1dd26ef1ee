"""Folders of checkpoints: atomic writes, the latest checkpoint, removal of old ones."""
