"""`pretrain align RECIPE`: the first layer and kernel in which two ways to train a recipe differ."""
