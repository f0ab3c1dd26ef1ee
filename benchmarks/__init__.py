"""Measurements behind the performance claims; results are kept as JSON in results/."""
