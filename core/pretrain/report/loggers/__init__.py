"""Loggers: metrics.jsonl, TensorBoard and trackers, each behind the interface that an installed logger has too."""
