"""Comparison of a kernel with the reference: values, tolerances, dropout rate, host synchronization."""
