"""The sections of a recipe, one file each: every key with its default, its unit and one sentence.

Sections inside `engine` are in its folder.
"""
