"""State that all ranks of a sharded checkpoint share (common.pt), and the names of its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.checkpoint import checksums, torch_file
from pretrain.checkpoint.folder import iteration_of
from pretrain.checkpoint.version import WITHOUT_CHECKSUMS
from pretrain.errors import DamageError, MisnamedError

if TYPE_CHECKING:
    from pathlib import Path

COMMON, BACKEND = "common.pt", "metadata.json"
OPTIMIZER = ("optimizer", "chained")
_OTHERS = (*OPTIMIZER, "rng", "rerun")
"""Beginnings of keys that are not of weights."""


def common_of(folder: Path) -> dict[str, Any]:
    """Return what all ranks share.

    torch_file reads it: megatron-core's own reader runs code where TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set.

    Raises:
        CheckpointError: it holds objects that could run code.
        DamageError: it is cut off; or this program wrote checksums beside it, and they are missing.
        MisnamedError: it is of another iteration than its folder.
    """
    common = torch_file.read(folder / COMMON)
    if not isinstance(common, dict):
        msg = f"{folder / COMMON} holds no values by name."
        raise DamageError(msg)
    if is_ours(common) and common["format"] != WITHOUT_CHECKSUMS and not checksums.are_there(folder):
        foreign = checksums.are_foreign(folder)
        what, copy = ("another program's", "the checkpoint's own there") if foreign else ("missing", "it there again")
        msg = f"{folder / checksums.FILE} is {what}.\nCopy {copy}, or take another checkpoint."
        raise DamageError(msg)
    told, named = iteration_told(common), iteration_of(folder.name)
    if None not in (told, named) and told != named:
        msg = f"{folder} holds iteration {told}, and its name says {named}.\nGive it the name of its iteration."
        raise MisnamedError(msg)
    return common


def is_ours(common: dict[str, Any]) -> bool:
    """Say whether this program wrote a checkpoint."""
    return "format" in common and isinstance(common.get("progress"), dict)


def iteration_told(common: dict[str, Any]) -> int | None:
    """Return the iteration that a checkpoint tells; None without one."""
    found: int | None = (common["progress"] if is_ours(common) else common).get("iteration")
    return found


def is_weight(key: str) -> bool:
    """Say whether a key of the index is of a weight."""
    return not key.startswith(_OTHERS) and "_extra_state" not in key
