"""The cpu backend: the smallest complete backend, and kernels that are fast on a CPU."""
