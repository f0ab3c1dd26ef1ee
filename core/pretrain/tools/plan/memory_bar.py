"""Bar of a stage's memory in characters, and its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.plan.stage_plan import PARTS
from pretrain.tools.plan.units import MIB, count, decimals_of, gib

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pretrain.tools.plan.stage_plan import StagePlan

    Paint = Callable[[str, str], str]
    """Colours a text as a part of `PARTS`, or as "limit"."""

LETTERS = dict(zip(PARTS, "WGOAKRP", strict=True))
"""Character of each part in a bar; K is the kernels' workspace."""
FREE = "."
LIMIT = "|"


def bar(parts: Mapping[str, int], *, scale: int, memory: int | None, width: int, paint: Paint) -> str:
    """Return a bar of `width` characters, and one more for the mark at the device's memory.

    Args:
        parts: bytes by `PARTS`.
        scale: bytes of the whole bar.
        memory: bytes of the device, where the mark is; None: no mark.
        width: characters.
        paint: colours the pieces.
    """
    cells = [_part_at(parts, (cell + 0.5) * scale / width) for cell in range(width)]
    text = [_painted(cells, paint)]
    if memory is not None:
        limit = min(width, round(memory / scale * width))
        text = [_painted(cells[:limit], paint), paint("limit", LIMIT), _painted(cells[limit:], paint, free=" ")]
    return "".join(text)


def _part_at(parts: Mapping[str, int], position: float) -> str:
    """Return the part that lies at a number of bytes from the left end; "" to the right of all."""
    end = 0
    for part in PARTS:
        end += parts.get(part, 0)
        if position < end:
            return part
    return ""


def _painted(cells: Sequence[str], paint: Paint, free: str = FREE) -> str:
    pieces: list[list[str]] = []
    for cell in cells:
        if pieces and pieces[-1][0] == cell:
            pieces[-1].append(cell)
        else:
            pieces.append([cell])
    return "".join(
        paint(piece[0], LETTERS[piece[0]] * len(piece)) if piece[0] else free * len(piece) for piece in pieces
    )


def table_of_parts(stages: Sequence[StagePlan], paint: Paint) -> list[str]:
    """Return layers and parameters of each stage, a line in GiB for each part that any stage has, and the sums.

    Where the peak is not the time of most activations, as in an update of the weights, they are a line of their own.
    """
    decimals = decimals_of(max(stage.peak_bytes for stage in stages))
    lines = [
        _row("", [f"stage {stage.stage}" for stage in stages]),
        _row("layers", [stage.layers for stage in stages]),
        _row("parameters", [count(stage.parameters) for stage in stages]),
    ]
    for part in PARTS:
        if any(stage.parts.get(part) for stage in stages):
            row = _row(f"{LETTERS[part]} {part}", [gib(stage.parts.get(part, 0), decimals) for stage in stages])
            lines.append(paint(part, row[0]) + row[1:])
    lines.append(_row("peak, GiB", [gib(stage.peak_bytes, decimals) for stage in stages]))
    lines.append(_row("of it tensors", [gib(stage.allocated_bytes, decimals) for stage in stages]))
    if any(stage.most_activations > stage.parts.get("activations", 0) for stage in stages):
        lines.append(_row("most activations", [gib(stage.most_activations, decimals) for stage in stages]))
    if any(stage.host_bytes >= MIB for stage in stages):
        lines.append(_row("host memory", [gib(stage.host_bytes, decimals) for stage in stages]))
    return lines


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<18}{''.join(f'{cell:>10}' for cell in cells)}"
