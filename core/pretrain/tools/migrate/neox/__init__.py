"""Settings of GPT-NeoX, and the keys of a recipe that they become."""
