"""A DeepSpeed JSON file as a part of a recipe: `engine.deepspeed_config`.

`merge.merge_deepspeed` is the entry. A file is read with the line of each key (file.py); a key is translated by a table
(same.py, settled.py) or by a function (precision.py, optimizer.py, zero.py) into keys of the recipe (translation.py),
and these are merged into the document that becomes the recipe. Every key of the file becomes a
key of the recipe, a notice, or an error. Meanings of keys are those of deepspeed 0.19.8.
"""
