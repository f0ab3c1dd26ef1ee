"""Observation of a run: metrics, console, TensorBoard, timers, environment, report."""
