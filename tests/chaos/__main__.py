"""A tiny training through faults, each judged by how the training ended.

    PYTHONPATH=tests python -m chaos [--backend NAME] [--nproc N] [--folder DIR] [--json]

It is an acceptance test of a backend, or of a cluster; docs/reliability.md has the faults and what they must lead to.
"""

from chaos.command import command

if __name__ == "__main__":
    command()
