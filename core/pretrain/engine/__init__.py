"""Engines, which step the optimizer: their protocol, a folder for each, and the optimizers."""
