"""Section `engine`, and the sections inside it."""
