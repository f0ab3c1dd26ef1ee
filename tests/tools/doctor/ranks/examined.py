"""Ranks that are examined together, as processes, with faults made on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from forked_python.client import Popen
from pretrain.launch.world import free_port
from pretrain.tools.doctor.finding import Finding, Verdict

TESTS = Path(__file__).parents[3]


def examine(
    folder,
    ranks=2,
    *,
    nodes=1,
    absent=(),
    faults=None,
    recipe=None,
    overrides=None,
    timeout=30.0,
    limit=300,
    others=None,
):
    """Examine ranks until all have ended, or the one that reports; return (rank that reports, code, findings).

    Args:
        folder: for the ranks' output.
        ranks: number of them.
        nodes: that they stand for, all on this machine.
        absent: ranks that are not started.
        faults: rank -> [name of a fault of `examined_rank`, its words].
        recipe: as plain data; None: the smallest, and no files are examined.
        overrides: rank -> those of its recipe.
        timeout: seconds after which a rank is silent.
        limit: seconds that it may take.
        others: is filled with the exit codes of the other ranks, which are waited for then.
    """
    case = {
        "worlds": _worlds(ranks, nodes),
        "timeout": timeout,
        "faults": faults or {},
        "recipe": recipe,
        "overrides": [(overrides or {}).get(rank, []) for rank in range(ranks)],
        "folder": str(folder),
    }
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    processes = {}
    try:
        for rank in set(range(ranks)) - set(absent):
            command = [sys.executable, "-m", "tools.doctor.ranks.examined_rank", json.dumps(case), str(rank)]
            with (folder / f"{rank}.log").open("wb") as log:
                processes[rank] = Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        report = _report(folder, processes, time.monotonic() + limit)
        if others is not None:
            others.update({rank: process.wait(60) for rank, process in processes.items() if rank != report[0]})
        return report
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _worlds(ranks, nodes):
    port, of_node = free_port(), ranks // nodes
    return [
        {
            "world_size": ranks,
            "local_rank": rank % of_node,
            "local_world_size": of_node,
            "node_rank": rank // of_node,
            "master_addr": "127.0.0.1",
            "master_port": port,
        }
        for rank in range(ranks)
    ]


def _report(folder, processes, deadline):
    while time.monotonic() < deadline:
        for rank, process in processes.items():
            file = folder / f"{rank}.json"
            if process.poll() is not None and file.exists():
                findings = [_finding(each) for each in json.loads(file.read_text())]
                return rank, process.returncode, findings
        time.sleep(0.02)
    logs = "\n".join((folder / f"{rank}.log").read_text(errors="replace")[-2000:] for rank in processes)
    raise AssertionError(f"no rank has reported:\n{logs}")


def _finding(values):
    return Finding(**{**values, "verdict": Verdict(values["verdict"]), "ranks": tuple(values["ranks"])})
