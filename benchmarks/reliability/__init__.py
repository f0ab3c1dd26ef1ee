"""Benchmarks of runs in which something fails."""
