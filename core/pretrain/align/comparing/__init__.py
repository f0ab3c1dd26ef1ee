"""Comparison of two recordings."""
