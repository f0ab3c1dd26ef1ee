"""Shell scripts, read and never run: the commands that a script would start, with the values of its variables."""
