"""Launchers as processes of their own, with a fake training: `launcher.py KIND JOB ...` exits as `pretrain run` does.

    ranks JOB NPROC                              ranks on this node
    restarting JOB NPROC                         the same, with restarts
    node JOB HOST:PORT [RESTARTS [FEWEST]]       one of two nodes with one rank each
    spare JOB HOST:PORT                          one of two nodes and a spare; `pretrain rendezvous` is there
    hosts JOB RANKS                              a hostfile's; a digit each: the ranks of each host

RESTARTS in the environment of the last is the number of restarts, and perhaps that of the fewest nodes.
"""

import os
import sys
from pathlib import Path
from unittest.mock import patch

from pretrain.cli.run import show_failure
from pretrain.errors import PretrainError
from pretrain.launch.job import job_of
from pretrain.launch.nodes.hosts import start_hosts
from pretrain.launch.nodes.nodes import Nodes, read_hostfile
from pretrain.launch.placement import Placement
from pretrain.launch.processes.early_signals import handle_early_signals
from pretrain.launch.processes.rank_starter import RankStarter
from pretrain.launch.restarts import RestartPolicy
from pretrain.launch.start import run_ranks, start
from pretrain.launch.world import LOCALHOST, free_port, node_worlds
from pretrain.recipe import load_recipe


def ranks(job, nproc):
    with RankStarter(forks=True) as starter:
        return run_ranks(job, node_worlds([int(nproc)], 0, LOCALHOST, free_port()), starter)


def restarting(job, nproc):
    handle_early_signals()  # as the command line does
    return start(placed(job, Nodes(), int(nproc), int(nproc)), job, RestartPolicy(limit=3))


def node(job, endpoint, *restarts):
    with patch("pretrain.launch.nodes.attempt._SHORT_TIMEOUT", 1.0):
        return start(placed(job, Nodes(count=2, rendezvous=endpoint), 1, 2), job, policy(*restarts))


def spare(job, endpoint):
    with patch("pretrain.launch.nodes.leader._SILENCE", 5.0):
        nodes = Nodes(count=2, rendezvous=endpoint, spares=1, external=True)
        return start(placed(job, nodes, 1, 2), job, RestartPolicy(limit=3))


def hosts(job, sizes):
    os.environ["FAKE_TRAINING"] = job.train.partition(":")[2]
    file = Path(job.run_dir).with_name("hosts")
    file.write_text("".join(f"host-{number} slots={slots}\n" for number, slots in enumerate(sizes)))
    with patch("pretrain.launch.nodes.hosts._PATIENCE", 5.0):
        restarts = os.environ.get("RESTARTS", "").split()
        return start_hosts(read_hostfile(file), job, load_recipe(job.recipe), policy(*restarts))


def placed(job, nodes, nproc, world_size):
    recipe = load_recipe(job.recipe)
    return Placement(recipe=recipe, backend=None, nodes=nodes, nproc=nproc, world_size=world_size, forks=True)


def policy(limit=0, fewest=None):
    return RestartPolicy(limit=int(limit), fewest_nodes=fewest and int(fewest))


def main(kind, job, *arguments):
    """Start a launcher; show the failure, or the stop, as the command does, and exit with its code."""
    kinds = {"ranks": ranks, "restarting": restarting, "node": node, "spare": spare, "hosts": hosts}
    failure = kinds[kind](job_of(job), *arguments)
    try:
        sys.exit(show_failure(failure))
    except PretrainError as error:
        print(error, file=sys.stderr)
        sys.exit(failure.exit_code)


main(*sys.argv[1:])
