"""Nodes of a SkyPilot task, whose command is started once on each."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from pretrain.launch.schedulers.integer_variable import integer_variable, port_variable
from pretrain.launch.schedulers.own_node import OwnNode
from pretrain.launch.world import port_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def own_node(environ: Mapping[str, str]) -> OwnNode | None:
    """Return the node that this machine is, else None.

    Raises:
        LaunchError: a variable is not a number.
    """
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
