"""Kernels and training steps on one GPU."""
