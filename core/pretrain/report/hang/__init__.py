"""Hang report: every rank's place in the training, written when one hangs or on SIGUSR1."""
