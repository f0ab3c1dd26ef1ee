"""The files of a training: token files, tokenizer, the folder of its checkpoints."""
