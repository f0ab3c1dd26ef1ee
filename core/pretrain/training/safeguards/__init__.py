"""Detects loss spikes, replica divergence, broken values and hangs."""
