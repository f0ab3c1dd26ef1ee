"""Conformance of kernels: one file per operation, each compared with the pure-torch reference."""
