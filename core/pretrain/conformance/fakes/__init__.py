"""Stand-ins of kernels and plain-torch kernels on fake tensors, compared with the kernels themselves."""
