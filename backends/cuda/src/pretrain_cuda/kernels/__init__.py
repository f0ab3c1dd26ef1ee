"""Kernels of the cuda backend and of the libraries that it calls; nothing here is imported before it is asked for."""
