"""Dialects: how each program names, orders and divides a model's weights; one file or folder for each."""
