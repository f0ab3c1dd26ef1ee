"""Recording of a few steps on the ranks that take them."""
