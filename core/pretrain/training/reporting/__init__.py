"""Measurements, records, logs and files of a run."""
