"""Recipes from the scripts and settings with which other programs are started; a mistake in them is a MigrateError."""
