"""Folders of checkpoints: written whole or not at all, found again, thinned out."""
