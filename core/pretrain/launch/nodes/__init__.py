"""Several nodes: how many, where they meet, and the programs that reach the hosts of a hostfile."""
