"""A rank of a large CUDA job on a machine without a GPU; docs/fake-gpu.md has the limits of that."""
