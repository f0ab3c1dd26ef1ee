"""Checks across sections: keys that contradict one another, and keys without effect."""
