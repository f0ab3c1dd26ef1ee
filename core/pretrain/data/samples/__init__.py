"""Samples of a training: datasets over token files, blends of them, and micro-batches."""
