"""Curves of a training as a table."""
