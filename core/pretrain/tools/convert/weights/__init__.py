"""Weights of a whole model under our names, read from files only when they are used."""
