"""The cpu backend: the smallest complete backend, with fast kernels for CPUs."""
