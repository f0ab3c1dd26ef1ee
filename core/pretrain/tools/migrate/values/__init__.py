"""Values of a recipe's keys, worked out of another program's settings."""
