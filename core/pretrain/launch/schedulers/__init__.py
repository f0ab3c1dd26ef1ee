"""Ranks that another program started: torchrun, srun, mpirun, and what they say of a rank's place."""
