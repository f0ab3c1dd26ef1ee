"""Comparison of the kernel tables of all ranks before the first step: different kernels make losses diverge."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist

from pretrain.errors import KernelError

if TYPE_CHECKING:
    from pretrain.plugins.negotiation.kernel_table import KernelTable

Decisions = dict[str, dict[str, object]]
T = TypeVar("T")


def check_same_on_all_ranks(table: KernelTable) -> None:
    """Compare the table with that of every other rank; nothing to do for one process. Collective.

    Raises:
        KernelError: on every rank, when any differs; names the operations, the ranks and what differs.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    digests = _gather(table.digest())
    if len(set(digests)) == 1:
        return
    everyone = _gather(_decisions(table))
    lines = [
        f"  rank {rank}, {difference}"
        for rank, decisions in enumerate(everyone)
        for difference in _differences(decisions, everyone[0])
    ]
    more = f"\n  ... and {len(lines) - 8} more differences" if len(lines) > 8 else ""
    msg = (
        "the kernel tables of the ranks differ: their losses would diverge.\n"
        + "\n".join(lines[:8])
        + more
        + "\nInstall the same versions on every node, or name the kernels in the recipe's section `kernels`."
    )
    raise KernelError(msg)


def _gather(value: T) -> list[T]:
    gathered: list[T] = [value] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def _decisions(table: KernelTable) -> Decisions:
    backend: Decisions = {"backend": {"name": table.backend, "provider": table.provider}}
    return backend | {row.operation: row.decision() for row in table.rows}


def _differences(mine: Decisions, first: Decisions) -> list[str]:
    found = []
    for operation in {**first, **mine}:
        here, there = mine.get(operation, {}), first.get(operation, {})
        keys = [key for key in here if here[key] != there.get(key)] if here and there else ["kernel", "provider"]
        if here != there:
            found.append(f"{operation}: {_fields(here, keys)}; rank 0: {_fields(there, keys)}")
    return found


def _fields(decision: dict[str, object], keys: list[str]) -> str:
    return ", ".join(f"{key} {decision[key]!r}" for key in keys) if decision else "not asked for"
