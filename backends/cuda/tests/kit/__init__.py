"""Stand-ins and compilations that the tests of the kernels share."""
