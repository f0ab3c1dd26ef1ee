"""Flags of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX: their recipe keys, or the reason that none is needed.

`here.py` and `not_needed.py` are tables, `answers.py` makes sentences of them. A flag that has the same name as a key
of a recipe (--train-iters, train.train_iters) is in neither table; of names of one word `answers.py` lists those that
mean the same.
"""
