"""What the performance claims are measured with; results are kept as JSON in results/."""
