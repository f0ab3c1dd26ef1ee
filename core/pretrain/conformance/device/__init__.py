"""Conformance of the device: its torch module, memory statistics, and a few iterations of training."""
