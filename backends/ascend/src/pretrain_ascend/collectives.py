"""HCCL's process groups: how much device memory each communicator gets, and the collectives that were called lately.

torch_npu takes `hccl_config` from the options that a group is made with. It takes no priority: whatever
`is_high_priority_stream` says, `_new_process_group_hccl_helper` sets it to False. TORCH_HCCL_HIGH_PRIORITY=1 sets it
for all groups.
"""

from __future__ import annotations

import os
import pickle
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.errors import BackendError
from pretrain.plugins.collective_record import collectives_of
from pretrain.plugins.offer import Offer
from pretrain_ascend import software

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.plugins.collective_record import CalledCollective
    from pretrain.plugins.offer import Answer
    from pretrain.plugins.requests import CollectivesRequest

BUFFER_SIZE = "TORCH_HCCL_TRACE_BUFFER_SIZE"
"""Entries that the recorder keeps; 0, torch_npu's own default, switches it off."""

_PREFIX = "group_name_"

BUFFERS = "PRETRAIN_ASCEND_HCCL_BUFFERS"
"""MB by group, such as "tp=400,dp=100": what HCCL_BUFFSIZE is for all groups. HCCL allocates it twice."""

SCALARS = ("mp", "intra_dist_opt_instance")
"""Groups over which megatron-core and the core sum norms and counts alone, by megatron-core's names."""
FOR_SCALARS = 16
"""MB for each of them; CANN's default is 200."""


def answers(request: CollectivesRequest) -> Answer:
    """Return HCCL's options; None for process groups of another kind."""
    if request.process_group != "hccl":
        return None
    return Offer(name="hccl", build=lambda _: partial(options_of, sizes()), provider=software.provider())


def sizes() -> dict[str, int]:
    """Return MB by group; groups that are not in it get HCCL_BUFFSIZE, or CANN's default.

    Raises:
        BackendError: the variable is not "group=MB,...".
    """
    found = {} if "HCCL_BUFFSIZE" in os.environ else dict.fromkeys(SCALARS, FOR_SCALARS)
    given = os.environ.get(BUFFERS, "")
    for entry in filter(None, (part.strip() for part in given.split(","))):
        group, _, size = entry.partition("=")
        if not (group and size.isdigit() and int(size) > 0):
            msg = (
                f"{BUFFERS} is '{given}': '{entry}' is not GROUP=MB.\n"
                "Write groups of megatron-core (tp, pp, dp, dp_cp, mp, embd, ...) with whole numbers: tp=400,dp=100"
            )
            raise BackendError(msg)
        found[group] = int(size)
    return found


def options_of(sizes: Mapping[str, int], group: str) -> Any | None:
    """Return `ProcessGroupHCCL.Options` with the size of the group's buffer; None where HCCL's own is meant."""
    if group not in sizes:
        return None
    options = import_module("torch_npu._C._distributed_c10d").ProcessGroupHCCL.Options()
    options.hccl_config = {"hccl_buffer_size": sizes[group]}
    return options


def of_hccl() -> list[CalledCollective]:
    """Return what torch_npu's flight recorder, a copy of torch's for NCCL, knows; empty where it is off."""
    binding = getattr(import_module("torch_npu")._C, "_distributed_c10d", None)  # noqa: SLF001  torch_npu has no other way
    dump = getattr(binding, "_dump_hccl_trace", None)  # newer than torch_npu 2.1
    if dump is None:
        return []
    trace = pickle.loads(dump(True, False, False))  # noqa: S301  torch_npu's own
    return collectives_of({"entries": [_as_torch(entry) for entry in trace.get("entries") or ()]})


def _as_torch(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry in torch's form: torch_npu 2.13 names no operation, and writes a prefix before a group's name."""
    name, description = entry["process_group"]
    operation = entry["profiling_name"] or "hccl:"
    return {**entry, "profiling_name": operation, "process_group": (name.removeprefix(_PREFIX), description)}
