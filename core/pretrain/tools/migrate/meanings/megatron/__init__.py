"""Flags of Megatron-LM and both Megatron-DeepSpeeds: the key of a recipe that each becomes, or the reason for none.

Tables by subject (`model_flags.py` and its like) are joined in `meanings.py`, by the name under which argparse keeps a
flag's value; `spellings.py` has flags that are called otherwise on a command line. `options.py` is about launchers and
preprocess_data.py. `hints.py` makes the sentences of errors of all of them.
"""
