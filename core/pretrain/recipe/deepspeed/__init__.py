"""A DeepSpeed JSON file as a part of a recipe, `engine.deepspeed_config`; keys mean what they do in deepspeed 0.19.8.

Each key is translated by a table or a function, and becomes a key of the recipe, a notice, or an error.
"""
