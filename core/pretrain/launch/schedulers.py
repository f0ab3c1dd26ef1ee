"""Detection of ranks and nodes that another program started: by variables of torchrun and of schedulers."""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.launch.world import LOCALHOST, World, port_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MPI_RANK, _MPI_SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
"""Variables that each process of Open MPI's mpirun has."""
_MPI_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
_PORTS_BETWEEN_STEPS = 7919
"""Far from 0 and from one another modulo the number of ports, of which each job has one for its first step."""
_RANGE = r"\d+(?:-\d+)?"
_NAME = rf"(?:[A-Za-z0-9_.-]|\[{_RANGE}(?:,{_RANGE})*\])+"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnNode:
    """The node on which this process starts the ranks, one of several."""

    by: str  # whose variables say it
    count: int
    rank: int
    rendezvous: str | None  # "HOST:PORT" on node 0; None where the variables do not tell
    nproc: int | None = None  # ranks of a node; None as above


def integer_variable(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a variable as a non-negative integer; one that is missing must have a default."""
    text = environ.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        msg = (
            f"the environment variable {name} is '{text}', not a number.\n"
            "Start the ranks with torchrun, srun or mpirun, or unset their variables: pretrain then starts its own."
        )
        raise LaunchError(msg)
    return int(text)


def port_variable(environ: Mapping[str, str], default: int | None = None, name: str = "MASTER_PORT") -> int:
    """Return a port, or the default, which need not be one."""
    if name not in environ and default is not None:
        return default
    port = integer_variable(environ, name)
    if not 0 < port < 65536:
        msg = f"the environment variable {name} is {port}; a port is from 1 to 65535.\nSet another, or unset it."
        raise LaunchError(msg)
    return port


def current_world(environ: Mapping[str, str] = os.environ) -> World | None:
    """Return this process's place if another program started it as a rank, else None."""
    # torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) win over Open MPI's and Slurm's,
    # because torchrun is often started by srun; Open MPI's win over Slurm's, because mpirun reaches its hosts by srun.
    if _kubeflow_node(environ, wanted=False):
        return None
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _torchrun_world(environ)
    return _mpi_world(environ) or _slurm_world(environ)


def own_node(*, wanted: bool, environ: Mapping[str, str] = os.environ) -> OwnNode | None:
    """Return the node on which this process starts the ranks itself, if a scheduler started it on each of several."""
    # A process that mpirun or srun has started alone on its node is a rank, unless a node is `wanted`, by options.
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= environ.keys():
        return None
    node = _kubeflow_node(environ, wanted=wanted)
    if node is None and _MPI_RANK in environ:
        node = _mpi_node(environ) if wanted else None
    elif node is None:
        node = _skypilot_node(environ) or (_slurm_node(environ) if wanted else None)
    return node if node is not None and node.count > 1 else None


def _torchrun_world(environ: Mapping[str, str]) -> World:
    missing = [name for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in environ]
    if missing:
        msg = (
            f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}.\n"
            "Start the ranks with torchrun, srun or mpirun, or unset RANK and WORLD_SIZE: pretrain then starts its "
            "own. If they count nodes, pass --nnodes $WORLD_SIZE."
        )
        raise LaunchError(msg)
    # LOCAL_SIZE and CROSS_RANK are DeepSpeed's words (deepspeed/launcher/launch.py).
    rank = integer_variable(environ, "RANK")
    local_world_size = integer_variable(environ, "LOCAL_WORLD_SIZE", integer_variable(environ, "LOCAL_SIZE", 1))
    return World(
        rank=rank,
        world_size=integer_variable(environ, "WORLD_SIZE"),
        local_rank=integer_variable(environ, "LOCAL_RANK"),
        local_world_size=local_world_size,
        node_rank=integer_variable(
            environ, "GROUP_RANK", integer_variable(environ, "CROSS_RANK", rank // local_world_size)
        ),
        master_addr=environ["MASTER_ADDR"],
        master_port=port_variable(environ),
    )


def _mpi_world(environ: Mapping[str, str]) -> World | None:
    """Return this process's place if mpirun, which does not pass the address of rank 0, started it with others."""
    if not _is_one_of_several(environ):
        return None
    rank, world_size = integer_variable(environ, _MPI_RANK), integer_variable(environ, _MPI_SIZE)
    local_world_size = integer_variable(environ, _MPI_LOCAL_SIZE)
    master_addr = environ.get("MASTER_ADDR") or (LOCALHOST if local_world_size == world_size else "")
    if not master_addr:
        msg = (
            "mpirun started this rank on one of several hosts, but MASTER_ADDR is not set.\n"
            "Name the host of rank 0: mpirun -x MASTER_ADDR=HOST."
        )
        raise LaunchError(msg)
    return World(
        rank=rank,
        world_size=world_size,
        local_rank=integer_variable(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world_size=local_world_size,
        node_rank=rank // local_world_size,  # OMPI_COMM_WORLD_NODE_RANK is the rank within the node
        master_addr=master_addr,
        master_port=_mpi_port(environ),
    )


def _mpi_node(environ: Mapping[str, str]) -> OwnNode | None:
    if not _is_one_of_several(environ) or integer_variable(environ, _MPI_LOCAL_SIZE) > 1:
        return None
    host = environ.get("MASTER_ADDR")
    return OwnNode(
        by="mpirun",
        count=integer_variable(environ, _MPI_SIZE),
        rank=integer_variable(environ, _MPI_RANK),
        rendezvous=f"{host}:{_mpi_port(environ)}" if host else None,
    )


def _is_one_of_several(environ: Mapping[str, str]) -> bool:
    return _MPI_RANK in environ and integer_variable(environ, _MPI_SIZE) > 1


def _mpi_port(environ: Mapping[str, str]) -> int:
    # The name of the job differs between jobs and is the same on all hosts.
    return port_variable(environ, port_of(zlib.crc32(environ.get("PMIX_NAMESPACE", "").encode())))


def _kubeflow_node(environ: Mapping[str, str], *, wanted: bool) -> OwnNode | None:
    """Return the node that this pod of a PyTorchJob or TrainJob is."""
    # PET_NNODES and PET_NODE_RANK are words for torchrun's options. A PyTorchJob sets RANK and WORLD_SIZE too, or alone
    # in its old versions, and there RANK counts pods; with LOCAL_RANK they are those of a rank that torchrun started.
    # Where a node is `wanted`, RANK and WORLD_SIZE without LOCAL_RANK count as its own outside of pods, too.
    if "LOCAL_RANK" in environ:
        return None
    by_options = {"PET_NNODES", "PET_NODE_RANK"} <= environ.keys()
    by_ranks = {"RANK", "WORLD_SIZE"} <= environ.keys() and (wanted or "KUBERNETES_SERVICE_HOST" in environ)
    if not (by_options or by_ranks):
        return None
    host = environ.get("PET_MASTER_ADDR") or environ.get("MASTER_ADDR")
    port = port_variable(environ, 0, "PET_MASTER_PORT" if "PET_MASTER_PORT" in environ else "MASTER_PORT")
    nproc = environ.get("PET_NPROC_PER_NODE", "")
    return OwnNode(
        by="PyTorchJob",
        count=integer_variable(environ, "PET_NNODES" if by_options else "WORLD_SIZE"),
        rank=integer_variable(environ, "PET_NODE_RANK" if by_options else "RANK"),
        rendezvous=f"{host}:{port}" if host and port else None,
        nproc=int(nproc) if nproc.isdecimal() else None,  # "auto" and "gpu" are all devices, as here
    )


def _skypilot_node(environ: Mapping[str, str]) -> OwnNode | None:
    """Return the node that this machine is in a SkyPilot task, whose command is started once on each."""
    if not {"SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK"} <= environ.keys():
        return None
    addresses = environ.get("SKYPILOT_NODE_IPS", "").split()
    # Two tasks of one cluster may share its machines.
    port = port_variable(environ, port_of(zlib.crc32(environ.get("SKYPILOT_TASK_ID", "").encode())))
    return OwnNode(
        by="SkyPilot",
        count=integer_variable(environ, "SKYPILOT_NUM_NODES"),
        rank=integer_variable(environ, "SKYPILOT_NODE_RANK"),
        rendezvous=f"{addresses[0]}:{port}" if addresses else None,
    )


def _slurm_world(environ: Mapping[str, str]) -> World | None:
    """Return this process's place if srun started it with more than one task, else None."""
    # A batch script outside srun has SLURM_PROCID=0 and the allocation's SLURM_NTASKS, too, but is alone: only srun
    # sets SLURM_STEP_ID. Inside an interactive step SLURM_NTASKS is the allocation's, SLURM_STEP_NUM_TASKS the step's.
    if "SLURM_STEP_ID" not in environ or "SLURM_PROCID" not in environ:
        return None
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    if integer_variable(environ, tasks, 1) == 1:
        return None
    node, tasks_of_nodes = integer_variable(environ, "SLURM_NODEID"), _tasks_of_nodes(environ)
    if node >= len(tasks_of_nodes):
        msg = f"this is node {node} of the Slurm step, but SLURM_STEP_TASKS_PER_NODE has {len(tasks_of_nodes)} nodes."
        raise LaunchError(msg)
    # Steps of one job may run side by side on its nodes: each has a port of its own.
    job, step = integer_variable(environ, "SLURM_JOB_ID"), integer_variable(environ, "SLURM_STEP_ID")
    return World(
        rank=integer_variable(environ, "SLURM_PROCID"),
        world_size=integer_variable(environ, tasks),
        local_rank=integer_variable(environ, "SLURM_LOCALID"),
        local_world_size=tasks_of_nodes[node],
        node_rank=node,
        master_addr=environ.get("MASTER_ADDR") or next(hosts(_nodelist(environ))),
        master_port=port_variable(environ, port_of(job + _PORTS_BETWEEN_STEPS * step)),
    )


def _slurm_node(environ: Mapping[str, str]) -> OwnNode | None:
    """Return the node of this task if srun started one on each of several nodes, else None."""
    task = _slurm_world(environ)
    if task is None or set(_tasks_of_nodes(environ)) != {1}:
        return None
    return OwnNode(
        by="srun",
        count=task.world_size,
        rank=task.node_rank,
        rendezvous=f"{task.master_addr}:{task.master_port}",
    )


def hosts(nodelist: str) -> Iterator[str]:
    """Return the host names of a Slurm node list in its order."""
    # `tux[1-3,07],login` is tux1, tux2, tux3, tux07, login. Ranges keep their leading zeros; a name may hold several
    # brackets (`rack[1-2]node[1-4]`), of which the last varies fastest.
    if not re.fullmatch(rf"{_NAME}(?:,{_NAME})*", nodelist):
        msg = (
            f"'{nodelist}' is not a Slurm node list such as tux[1-3,07],login.\n"
            "Set MASTER_ADDR to the first node's name."
        )
        raise LaunchError(msg)
    for name in re.findall(_NAME, nodelist):
        yield from _expand(name)


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


def _tasks_of_nodes(environ: Mapping[str, str]) -> list[int]:
    """Read "2(x3),1": three nodes with two tasks each, then one with one."""
    given = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    if not re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", given):
        msg = f"the environment variable SLURM_STEP_TASKS_PER_NODE is '{given}', not a list such as 2(x3),1."
        raise LaunchError(msg)
    return [int(tasks) for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", given) for _ in range(int(times or 1))]
