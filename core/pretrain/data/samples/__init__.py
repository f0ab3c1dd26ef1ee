"""Training samples: datasets over token files, blends of them, and micro-batches."""
