"""`pretrain doctor --faults`: a tiny training through faults, each judged by how the training ended."""
