"""Ranks started by srun."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.launch.scheduler_variables import OwnNode, integer_variable, port_variable
from pretrain.launch.world import World, port_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PORTS_BETWEEN_STEPS = 7919
"""Far from 0 and from one another modulo the number of ports, of which each job has one for its first step."""


def current_world(environ: Mapping[str, str]) -> World | None:
    """Return this process's place if srun started it with more than one task, else None.

    A batch script outside srun has SLURM_PROCID=0 and the allocation's SLURM_NTASKS, too, but is alone: only srun
    sets SLURM_STEP_ID. Inside an interactive step SLURM_NTASKS is the allocation's, SLURM_STEP_NUM_TASKS the step's.
    """
    if "SLURM_STEP_ID" not in environ or "SLURM_PROCID" not in environ:
        return None
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    if integer_variable(environ, tasks, 1) == 1:
        return None
    node = integer_variable(environ, "SLURM_NODEID")
    return World(
        rank=integer_variable(environ, "SLURM_PROCID"),
        world_size=integer_variable(environ, tasks),
        local_rank=integer_variable(environ, "SLURM_LOCALID"),
        local_world_size=_tasks_of_node(environ, node),
        node_rank=node,
        master_addr=environ.get("MASTER_ADDR") or first_host(_nodelist(environ)),
        master_port=port_variable(environ, _port(environ)),
    )


def own_node(environ: Mapping[str, str]) -> OwnNode | None:
    """Return the node of this task if srun started one on each of several nodes, else None."""
    task = current_world(environ)
    if task is None or set(_tasks_of_nodes(environ)) != {1}:
        return None
    return OwnNode(
        by="srun",
        count=task.world_size,
        rank=task.node_rank,
        rendezvous=f"{task.master_addr}:{task.master_port}",
    )


def hosts(nodelist: str) -> Iterator[str]:
    """Return the host names of a Slurm node list in its order.

    `tux[1-3,07],login` is tux1, tux2, tux3, tux07, login. Ranges keep their leading zeros; a name may hold several
    brackets (`rack[1-2]node[1-4]`), of which the last varies fastest.
    """
    if not re.fullmatch(rf"{_NAME}(?:,{_NAME})*", nodelist):
        msg = (
            f"'{nodelist}' is not a Slurm node list such as tux[1-3,07],login.\n"
            "Set MASTER_ADDR to the first node's name."
        )
        raise LaunchError(msg)
    for name in re.findall(_NAME, nodelist):
        yield from _expand(name)


def first_host(nodelist: str) -> str:
    """Return the first host of a Slurm node list; raises LaunchError as `hosts`."""
    return next(hosts(nodelist))


_RANGE = r"\d+(?:-\d+)?"
_NAME = rf"(?:[A-Za-z0-9_.-]|\[{_RANGE}(?:,{_RANGE})*\])+"


def _expand(name: str) -> Iterator[str]:
    before, bracket, rest = name.partition("[")
    if not bracket:
        yield name
        return
    inside, _, after = rest.partition("]")
    for part in inside.split(","):
        first, _, last = part.partition("-")
        for index in range(int(first), int(last or first) + 1):
            for tail in _expand(after):
                yield f"{before}{index:0{len(first)}}{tail}"


def _nodelist(environ: Mapping[str, str]) -> str:
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environ.get(name):
            return environ[name]
    msg = "srun started this rank, but SLURM_JOB_NODELIST is not set.\nSet MASTER_ADDR to the first node's name."
    raise LaunchError(msg)


def _port(environ: Mapping[str, str]) -> int:
    job, step = integer_variable(environ, "SLURM_JOB_ID"), integer_variable(environ, "SLURM_STEP_ID")
    return port_of(job + _PORTS_BETWEEN_STEPS * step)


def _tasks_of_node(environ: Mapping[str, str], node: int) -> int:
    counts = _tasks_of_nodes(environ)
    if node >= len(counts):
        msg = f"this is node {node} of the Slurm step, but SLURM_STEP_TASKS_PER_NODE has {len(counts)} nodes."
        raise LaunchError(msg)
    return counts[node]


def _tasks_of_nodes(environ: Mapping[str, str]) -> list[int]:
    """Read "2(x3),1": three nodes with two tasks each, then one with one."""
    given = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    if not re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", given):
        msg = f"the environment variable SLURM_STEP_TASKS_PER_NODE is '{given}'; a list such as 2(x3),1 was expected."
        raise LaunchError(msg)
    return [int(tasks) for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", given) for _ in range(int(times or 1))]
