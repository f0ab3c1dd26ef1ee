"""What the control plane of a run costs with many ranks; see `benchmarks.scale.__main__`."""
