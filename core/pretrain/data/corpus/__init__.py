"""Text in, token files out."""
