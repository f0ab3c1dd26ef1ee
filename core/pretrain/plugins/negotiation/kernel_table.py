"""Kernel table: the kernel of each operation, its provider, and the rejected kernels with reasons."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

from pretrain.collectives import tree_of_world
from pretrain.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A kernel that was declined, or offered and not taken."""

    provider: str
    kernel: str
    kind: str
    why: str  # "declined: <reason>", "offered, comes later in the order", ...


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRow:
    """One operation."""

    operation: str
    kernel: str
    kind: str  # its family ("flash"), or ""
    provider: str  # the distribution, and a library that does the work: "pretrain-cuda 0.1.0 (flash-attn 2.8.3)"
    request: Mapping[str, object]
    rejected: tuple[Rejected, ...]

    def decision(self) -> dict[str, object]:
        """Return what ranks must agree on: everything but the kernels that were not taken."""
        return {key: value for key, value in asdict(self).items() if key != "rejected"}

    def to_json(self) -> dict[str, object]:
        """Return the row as plain JSON values."""
        return asdict(self) | {"rejected": [asdict(other) for other in self.rejected]}


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTable:
    """The rows in the order in which kernels were built."""

    backend: str
    provider: str
    rows: tuple[KernelRow, ...]

    def to_json(self) -> dict[str, object]:
        """Return the table as plain JSON values, for environment.json."""
        return {
            "backend": self.backend,
            "provider": self.provider,
            "digest": self.digest(),
            "rows": [row.to_json() for row in self.rows],
        }

    def digest(self) -> str:
        """Return the sha256 of the decisions as canonical JSON: equal on ranks that run the same kernels."""
        # Reasons of kernels that were not taken are left out: they may depend on one device, and change nothing.
        decided = {
            "backend": self.backend,
            "provider": self.provider,
            "rows": sorted((row.decision() for row in self.rows), key=lambda row: str(row["operation"])),
        }
        canonical = json.dumps(decided, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


Decisions = dict[str, dict[str, object]]


def check_same_on_all_ranks(table: KernelTable) -> None:
    """Raise KernelError on every rank where the table differs from that of another rank. Collective."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    tree = tree_of_world()
    if len(tree.combined({table.digest()}, lambda some: set[str]().union(*some))) == 1:
        return
    raise KernelError(tree.first_of(_problem(tree.gathered(_decisions(table)) or [])))


def _problem(everyone: Sequence[Decisions]) -> str:
    """Return what differs from the first rank, for a message."""
    lines = [
        f"  rank {rank}, {difference}"
        for rank, decisions in enumerate(everyone)
        for difference in _differences(decisions, everyone[0])
    ]
    more = f"\n  ... and {len(lines) - 8} more differences" if len(lines) > 8 else ""
    return (
        "the kernel tables of the ranks differ: their losses would diverge.\n"
        + "\n".join(lines[:8])
        + more
        + "\nInstall the same versions on every node, or name the kernels in the recipe's section `kernels`."
    )


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
