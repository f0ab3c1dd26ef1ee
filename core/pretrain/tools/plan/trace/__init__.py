"""Trace of a rank on fake tensors: its memory and its work."""
