"""Conformance of kernels: one file per operation, each judged against the pure-torch reference."""
