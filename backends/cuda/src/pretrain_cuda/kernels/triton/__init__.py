"""Kernels written in Triton; every module here except this one imports triton."""
