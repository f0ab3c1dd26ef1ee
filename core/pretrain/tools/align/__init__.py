"""Finds the first step, layer and kernel in which two ways to train a recipe differ."""
