"""`pretrain migrate`: a recipe from the scripts and files of other programs, and their arguments from a recipe."""
