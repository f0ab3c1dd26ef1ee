"""Building token files from text."""
