"""Ranks that another program started: torchrun, srun, mpirun, and their variables for a rank's place."""
