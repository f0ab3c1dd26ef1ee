"""Ranks as processes: forked together, and a failure shows the output of the rank that failed first."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from forked_python.client import Popen

TESTS = Path(__file__).parent


def run_ranks(module, *arguments, folder, world_size, variables=lambda rank: {}, minutes=20):
    """Run `python -m module *arguments` once a rank, until all have ended well.

    Args:
        module: under tests/.
        arguments: of every rank; `{rank}` stands for its number.
        folder: each rank writes its output to folder/RANK.log.
        world_size: number of ranks.
        variables: of the environment of a rank.
        minutes: that all may take.
    """
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    logs = [folder / f"{rank}.log" for rank in range(world_size)]
    ranks = []
    try:
        for rank, log in enumerate(logs):
            command = [sys.executable, "-W", "ignore", "-m", module]
            command += [str(argument).format(rank=rank) for argument in arguments]
            with log.open("wb") as output:
                environment_of = {**environment, **variables(rank)}
                ranks.append(Popen(command, env=environment_of, stdout=output, stderr=subprocess.STDOUT))
        first = _wait(ranks, time.monotonic() + 60 * minutes)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    if first is not None:
        message = f"rank {first} of {module} ended with {ranks[first].returncode}; its output:\n"
        raise AssertionError(message + logs[first].read_text(errors="replace")[-5000:])


def _wait(ranks, deadline):
    """Return the rank that was the first to fail, or None when all have ended well."""
    while True:
        codes = [process.poll() for process in ranks]
        if any(codes):
            return next(rank for rank, code in enumerate(codes) if code)
        if None not in codes:
            return None
        if time.monotonic() > deadline:
            return codes.index(None)
        time.sleep(0.05)
