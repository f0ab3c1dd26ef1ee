"""Settings of GPT-NeoX: their keys in a recipe, or the reason that none is needed.

Names are those of the dataclasses in megatron/neox_arguments, and paths such as "optimizer.params.lr" of its objects.
`meanings.py` joins the tables.
"""
