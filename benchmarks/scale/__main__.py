"""Cost of the control plane at many ranks: the real protocols, spoken by players without a model on this machine.

    python -m benchmarks.scale [--ranks 64 256 1024 4096] [--before REVISION] [--now REVISION] [--quick] [--keep]

Launchers (one for 8 ranks) meet, watch each other, restart and stop; ranks start, exchange numbers after each
iteration, stop, agree on a checkpoint and report a hang. Each size has its own processes and its own store, whose bytes
and requests the kernel counts on its server's connections. `--before` measures a revision of the repository too, and
adds the ratios. Counts are facts; seconds are upper bounds, since all players share this machine's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import machine
from benchmarks.scale import tables
from benchmarks.scale.growth import growth

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = (64, 256, 1024, 4096)
COUNTED = ("seconds", "store_bytes", "store_requests", "sockets_of_first", "sockets_each")


def measured(core: Path, sizes: list[int]) -> dict[str, dict[str, object]]:
    """Return what the code below `core` costs, by act and size, and how that grows."""
    environment = {**os.environ, "PYTHONPATH": str(core), "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    acts: dict[str, dict[int, dict[str, float]]] = {}
    for size in sizes:
        print(f"{core}: {size} ranks", file=sys.stderr, flush=True)
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.scale.measure", str(size)]
        done = subprocess.run(command, cwd=machine.ROOT, env=environment, check=True, stdout=subprocess.PIPE)
        print(done.stdout.decode(), file=sys.stderr, flush=True)  # what there is if a larger size does not end
        for act, costs in json.loads(done.stdout).items():
            acts.setdefault(act, {})[size] = costs
    return {act: {"of": of, "growth": _grown(of)} for act, of in acts.items()}


def _grown(of: dict[int, dict[str, float]]) -> dict[str, object]:
    return {name: growth({size: costs[name] for size, costs in of.items()}) for name in COUNTED}


@contextmanager
def code_of(revision: str) -> Iterator[Path]:
    """Yield a folder with the packages of a revision's core."""
    archive = ["git", "archive", revision, "core"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(archive, cwd=machine.ROOT, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], input=done.stdout, check=True)
        yield Path(folder) / "core"


def ratios(before: dict[str, dict], after: dict[str, dict]) -> dict[str, object]:
    """Return after / before of each count, by act and size; 1.0 is no change, and nothing where before it was 0."""
    found = {}
    for act in before.keys() & after.keys():
        of = before[act]["of"]
        found[act] = {
            size: {name: round(now[name] / of[size][name], 4) for name in COUNTED if of[size][name]}
            for size, now in after[act]["of"].items()
            if size in of
        }
    return found


def main() -> None:
    """Measure, print, and with --keep write results/scale.json and the tables of docs/scale.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SIZES), help="sizes, multiples of 8")
    parser.add_argument("--before", metavar="REVISION", help="measure this revision of the repository, too")
    parser.add_argument("--now", metavar="REVISION", help="measure this one instead of the working tree")
    parser.add_argument("--quick", action="store_true", help="16 ranks alone")
    parser.add_argument("--keep", action="store_true", help="write results/scale.json, and the tables of docs/scale.md")
    options = parser.parse_args()
    sizes = [16] if options.quick else sorted(options.ranks)
    result: dict[str, object] = machine.describe(threads=1)
    for word, revision in (("before", options.before), ("now", options.now)):
        if revision:
            with code_of(revision) as core:
                result |= {f"{word}_is": revision, word: measured(core, sizes)}
        elif word == "now":
            result[word] = measured(machine.ROOT / "core", sizes)
    if options.before:
        result["ratio"] = ratios(result["before"], result["now"])
    print(json.dumps(result, indent=1))
    if options.keep:
        machine.keep("scale", result)
        tables.main()


if __name__ == "__main__":
    main()
