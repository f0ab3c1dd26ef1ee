"""NVIDIA GPUs for `pretrain`: a device and the kernels that are fast on it."""
