"""The optimizers: a file for each, chosen by `choice`."""
