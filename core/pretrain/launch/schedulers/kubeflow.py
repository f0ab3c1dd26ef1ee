"""Nodes of Kubeflow's PyTorchJob and TrainJob, whose pods start their own ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.launch.schedulers.integer_variable import integer_variable, port_variable
from pretrain.launch.schedulers.own_node import OwnNode

if TYPE_CHECKING:
    from collections.abc import Mapping


def own_node(environ: Mapping[str, str], *, wanted: bool) -> OwnNode | None:
    """Return the node that this pod is, else None.

    PET_NNODES and PET_NODE_RANK are words for torchrun's options. A PyTorchJob sets RANK and WORLD_SIZE too, or alone
    in its old versions, and there RANK counts pods; with LOCAL_RANK they are those of a rank that torchrun started.

    Args:
        environ: the environment.
        wanted: RANK and WORLD_SIZE without LOCAL_RANK count as a node's outside of pods, too.

    Raises:
        LaunchError: a variable is not a number: PET_NNODES of an elastic job is a range, such as 1:4.
    """
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
