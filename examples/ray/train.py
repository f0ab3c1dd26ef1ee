"""A training on several nodes of a Ray cluster, one process of pretrain on each, which starts the ranks there.

One command, on a machine of the cluster. What follows `--` is given to pretrain, which Ray's Python has on all nodes.
The nodes share their files.

    python examples/ray/train.py --nodes 2 --gpus 8 --cpus 64 -- recipe.yml --backend cuda --run-dir /shared/runs/first

A node that is lost, and exit code 75 of pretrain (saved, with more to do), start the training again where it was, when
the cluster has the nodes. SIGTERM and Ctrl-C save and end it with 75; every other code is pretrain's own.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

SAVED = 75
LOST = 256  # no exit code
PATIENCE = 10  # seconds
THREADS = "OMP_NUM_THREADS"


@ray.remote(max_concurrency=2)  # `stop` while `run` waits
class Node:
    """One process of pretrain, in a bundle of the placement group."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def rendezvous(self) -> str:
        """Return "HOST:PORT" of this node, with a port that is free now."""
        with socket.socket() as found:
            found.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{found.getsockname()[1]}"

    def run(self, options: list[str], threads: dict[str, str], folder: str) -> int:
        """Return pretrain's exit code; paths are meant from the folder where the program was called."""
        # Ray has set the threads of a process to the bundle's cores; those are of all ranks together.
        others = {name: value for name, value in os.environ.items() if name != THREADS}
        # Where Ray ends this process, pretrain saves and ends too, instead of training on alone.
        bound = ["setpriv", "--pdeathsig", "TERM"]
        self._process = subprocess.Popen(
            [*bound, sys.executable, "-m", "pretrain.cli.main", *options], env=others | threads, cwd=folder
        )
        if self._stopped:
            self.stop()
        code = self._process.wait()
        return 128 - code if code < 0 else code  # of a signal, as a shell has it

    def stop(self) -> None:
        """Have pretrain save and end; it tells the other nodes."""
        self._stopped = True
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)


class Stop:
    """Whether a signal has asked for the end."""

    asked = False

    def take(self, *_: object) -> None:
        """Take a signal."""
        self.asked = True


def attempt(given: argparse.Namespace, stop: Stop) -> int:
    """Return pretrain's exit code, or LOST."""
    group = placement_group([{"CPU": given.cpus, "GPU": given.gpus}] * given.nodes, strategy="STRICT_SPREAD")
    each = f"{given.gpus} GPUs and {given.cpus} cores each"
    waited = 0
    try:
        while not stop.asked and not group.wait(1):  # the cluster may have to find the nodes first
            waited += 1
            if waited == PATIENCE:
                print(f"waiting for {given.nodes} nodes with {each}; `ray status` shows what is there", flush=True)
        return SAVED if stop.asked else run(group, given, stop)
    finally:
        remove_placement_group(group)


def run(group: ray.util.placement_group.PlacementGroup, given: argparse.Namespace, stop: Stop) -> int:
    """Run pretrain on each node of the group; return the exit code, which all nodes share, or LOST."""
    nodes: list[ray.actor.ActorHandle] = []
    for bundle in range(given.nodes):
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        nodes += [Node.options(num_cpus=given.cpus, num_gpus=given.gpus, scheduling_strategy=place).remote()]
    options = ["--resume", "auto", "--max-restarts", "10", *given.options, "--nnodes", str(given.nodes)]
    try:
        options += ["--rdzv", ray.get(nodes[0].rendezvous.remote())]
    except RayActorError:
        return LOST
    threads = {name: value for name, value in os.environ.items() if name == THREADS}  # what the user has set
    ranked = [([*options, "--node-rank", str(rank)], node) for rank, node in enumerate(nodes)]
    waiting = [node.run.remote(words, threads, str(Path.cwd())) for words, node in ranked]
    codes: list[int] = []
    told = False
    while waiting:
        ended, waiting = ray.wait(waiting, timeout=1)
        codes += [code_of(reference) for reference in ended]
        if not told and (stop.asked or LOST in codes):
            told = True
            for node in nodes:
                node.stop.remote()
    for node in nodes:
        ray.kill(node)  # its process has ended
    return LOST if LOST in codes else max(codes)


def code_of(reference: ray.ObjectRef) -> int:
    """Return what a node's process ended with."""
    try:
        return ray.get(reference)
    except RayActorError as error:
        print(f"a node was lost: {error}".splitlines()[0], flush=True)
        return LOST


def main() -> int:
    """Start the training until it is complete, has failed, or was asked to end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus", type=int, default=0, help="of each node")
    parser.add_argument("--cpus", type=int, default=1, help="of each node")
    parser.add_argument("--attempts", type=int, default=100)
    parser.add_argument("options", nargs="+", help="recipe and options of pretrain, after --")
    given = parser.parse_args()
    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"))
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.take)
    code = LOST
    for number in range(given.attempts):
        code = attempt(given, stop)
        if stop.asked or code not in {SAVED, LOST}:
            break
        why = "a lost node" if code == LOST else f"exit code {code}"
        print(f"attempt {number + 1} ended with {why}; the training starts again", flush=True)
    return code if code != LOST else 1


if __name__ == "__main__":
    sys.exit(main())
