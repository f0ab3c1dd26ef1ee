"""Syntax of shell scripts: their text, read into trees."""
