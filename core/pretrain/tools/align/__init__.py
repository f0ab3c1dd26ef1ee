"""Comparison of two ways to train a recipe: the first step, layer and kernel in which they differ."""
