"""A rank of a large CUDA job on a machine without a GPU; docs/fake-gpu.md says what that shows and what it cannot."""
