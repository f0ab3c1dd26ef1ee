"""A cluster of four nodes for tests.

`PYTHONPATH=tests python -m clusters.cluster FOLDER` keeps one for trials by hand.
"""

import shlex
import sys
from contextlib import contextmanager
from pathlib import Path

from clusters import services
from clusters.virtual_nodes import NUMBERS, Node, connect


@contextmanager
def cluster(folder):
    """Yield four nodes with sshd, of which the first has Slurm's controller and the others are its nodes."""
    services.write_files(folder)
    nodes = []
    try:
        for number in NUMBERS:  # one by one, so that those before one that fails are closed
            nodes += [Node(number, folder, {"SLURM_CONF": folder / "slurm.conf"})]
        connect(nodes)
        for node in nodes:
            services.start_sshd(node, folder)
        services.start_slurm(nodes, folder)
        yield nodes
    finally:
        for node in nodes:
            node.close()


def main():
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True)
    with cluster(folder) as nodes:
        for number, node in enumerate(nodes):
            enter = shlex.join(node.words()).replace("--chdir /", '--chdir "$PWD"')
            (folder / f"on{number}").write_text(f'#!/bin/sh\nexec {enter} "$@"\n')
            (folder / f"on{number}").chmod(0o755)
        print(f"In another shell: {folder}/on0 srun -N 2 hostname. Enter, or Ctrl-C, ends the nodes.", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
