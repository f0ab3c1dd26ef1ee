"""The DeepSpeed engine."""
