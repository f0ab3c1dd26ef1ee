"""Building token files, the order of the samples, and loading them."""
