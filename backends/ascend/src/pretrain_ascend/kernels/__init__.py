"""Calls of CANN's kernels, and the requirements that they have of the chip."""
