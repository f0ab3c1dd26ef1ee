"""Formats of checkpoints. A program has a module that describes and reads its files, and one that writes them."""
