"""The sections of a recipe: every key with its default, its unit and one sentence."""
