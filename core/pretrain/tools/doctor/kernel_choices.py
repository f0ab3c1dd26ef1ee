"""Kernels that each rank would take: different ones make the losses of ranks diverge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.finding import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretrain.tools.doctor.ranks.board import Board

_KEY = "kernels of rank"


def write_choices(board: Board, chosen: Mapping[str, str]) -> None:
    """Tell the other ranks which kernels this one takes.

    Args:
        board: of this rank.
        chosen: operation -> kernel and its provider; empty where none could be chosen.
    """
    board.write(f"{_KEY} {board.world.rank}", dict(chosen))


def differing_choices(board: Board, world_size: int) -> Iterator[Finding]:
    """Yield a finding for each operation that ranks would serve with different kernels."""
    keys = {f"{_KEY} {rank}": rank for rank in range(world_size)}
    found = {keys[key]: chosen for key, chosen in board.read(keys).items() if chosen}
    for operation in dict.fromkeys(operation for chosen in found.values() for operation in chosen):
        ranks: dict[str, list[int]] = {}
        for rank, chosen in sorted(found.items()):
            ranks.setdefault(chosen.get(operation, "none"), []).append(rank)
        if len(ranks) > 1:
            text = "; ".join(f"{rank_names(those)}: {kernel}" for kernel, those in ranks.items())
            yield Finding(
                check=f"kernel {operation}",
                verdict=Verdict.WRONG,
                text=f"the ranks would take different kernels: {text}",
                remedy="Install the same versions on every node, or name the kernels (`kernels` of the recipe).",
            )
