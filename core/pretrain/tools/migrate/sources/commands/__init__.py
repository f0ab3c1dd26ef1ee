"""Commands of a script: their launchers, and the programs that they start."""
