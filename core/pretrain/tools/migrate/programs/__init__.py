"""Programs that people train with: their versions, and the flags of each."""
