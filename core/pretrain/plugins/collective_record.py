"""Collectives that a process has called lately, as torch's flight recorder knows them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NO_PEER = -1
BESIDE = "beside the training"
"""Description of process groups in which other threads than the main one communicate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CalledCollective:
    """One collective, or one message between two ranks, that this process has called. Contract 1.2."""

    operation: str
    """As in torch.distributed: "all_reduce", "send"; empty where the library does not say it."""
    library: str
    """Library that runs it: "gloo", "nccl", "hccl"."""
    group: str
    """Description of its process group, `group_desc` of torch.distributed.new_group."""
    ranks: tuple[int, ...]
    """Members of the group, numbers of the world; empty where they are not known."""
    number: int
    """Counts the group's collectives from 1; equal on all its ranks for one collective."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of the inputs."""
    dtype: str = ""
    """Dtype of the inputs, in torch's words: "float32"; empty where there are none."""
    peer: int = NO_PEER
    """Other rank of a message; `NO_PEER` for a collective, and where it is not known."""
    is_message: bool = False
    """It is a send or receive, which `number` does not count."""
    pending: bool
    """It has not ended."""
    called: float
    """Seconds since the epoch."""


def of_flight_recorder() -> list[CalledCollective]:
    """Return what torch's flight recorder holds, oldest first: of gloo; empty where it is switched off.

    It is torch's own ring buffer of the last TORCH_FR_BUFFER_SIZE calls (torch 2.13: 2000). NCCL's calls are in another
    one (`_dump_nccl_trace`), since they end by events of the device.
    """
    from torch._C import _distributed_c10d  # noqa: PLC0415  the class must be importable without torch

    dump = getattr(_distributed_c10d, "_dump_fr_trace", None)  # torch has it since 2.7
    return [] if dump is None else collectives_of(pickle.loads(dump(True, False, False)))  # noqa: S301  torch's own


def collectives_of(trace: Mapping[str, Any]) -> list[CalledCollective]:
    """Return the collectives of a flight recorder's dump, in the form of torch's; other libraries of torch copy it."""
    groups, entries = groups_by_name(), trace.get("entries") or ()
    # Of a batch (`batch_isend_irecv`) only the entry of the whole ends; those of its parts have its number.
    coalesced = [entry for entry in entries if str(entry["profiling_name"]).endswith(":coalesced")]
    batches = {_number(entry) for entry in coalesced if _has_ended(entry)}
    return [_collective(entry, groups, has_ended=_has_ended(entry) or _number(entry) in batches) for entry in entries]


def _number(entry: Mapping[str, Any]) -> tuple[str, bool, int]:
    """Return group, kind and number of an entry."""
    is_message = bool(entry["is_p2p"])
    return entry["process_group"][0], is_message, entry["p2p_seq_id" if is_message else "collective_seq_id"]


def _has_ended(entry: Mapping[str, Any]) -> bool:
    # gloo's entries stay "scheduled"; a collective of a device is retired when it has ended, or its time is out.
    return bool(entry["retired"]) or entry["state"] == "completed"


def _collective(
    entry: Mapping[str, Any], groups: Mapping[str, tuple[str, tuple[int, ...]]], *, has_ended: bool
) -> CalledCollective:
    library, _, operation = str(entry["profiling_name"]).partition(":")
    name, description = entry["process_group"]
    operation, _, between = operation.partition(" ")  # "nccl:send 0->1"
    known, members = groups.get(name, ("", ()))
    return CalledCollective(
        operation=operation.removeprefix("_"),
        library=library,
        group=description or known,
        ranks=members,
        number=_number(entry)[2],
        shapes=tuple(tuple(size) for size in entry["input_sizes"]),
        dtype=_dtype(entry["input_dtypes"]),
        peer=_peer(between, members),
        is_message=bool(entry["is_p2p"]),
        pending=not has_ended,
        called=entry["time_created_ns"] / 1e9,
    )


def _dtype(dtypes: Iterable[str]) -> str:
    """Return the first of torch's C++ names in Python's words."""
    first = next(iter(dtypes), "")
    return _DTYPES.get(first, first.lower())


_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
}


def _peer(between: str, members: tuple[int, ...]) -> int:
    """Return the other rank of "send 0->1" or "recv 1<-0", whose numbers count within the group."""
    arrow = "->" if "->" in between else "<-"
    numbers = between.split(arrow)
    if len(numbers) != 2 or not numbers[1].isdigit():
        return NO_PEER
    place = int(numbers[1])
    return members[place] if place < len(members) else NO_PEER


def process_groups() -> dict[str, tuple[int, ...]]:
    """Return the members of this rank's process groups by description; of several of one description, the last's."""
    return {group.group_desc: members for group, members in _members().items()}


def groups_by_name() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return description and members of this rank's process groups, by the name that the recorder gives them."""
    return {group.group_name: (group.group_desc, members) for group, members in _members().items()}


def _members() -> dict[Any, tuple[int, ...]]:
    from torch.distributed import distributed_c10d  # noqa: PLC0415

    ranks = distributed_c10d._world.pg_group_ranks  # noqa: SLF001  torch has no public list of its groups
    own = ((group, places) for group, places in list(ranks.items()) if isinstance(group, distributed_c10d.ProcessGroup))
    return {group: tuple(sorted(places, key=places.__getitem__)) for group, places in own}
