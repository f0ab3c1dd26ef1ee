"""Values of a recipe's keys that several settings of GPT-NeoX make together."""
