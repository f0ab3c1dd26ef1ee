"""Engines, which step the optimizer: their protocol, and one folder for each."""
