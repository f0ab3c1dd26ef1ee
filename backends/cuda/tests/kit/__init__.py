"""What the tests of the kernels share."""
