"""Tables of a plan: memory by part and by kind of module, for the screen and the page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.tools.plan.stage_plan import PARTS
from pretrain.tools.plan.wording import MIB, count, decimals_of, gib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pretrain.tools.plan.plan import Plan
    from pretrain.tools.plan.stage_plan import ModuleRow, StagePlan

MODULE_HEAD = ("module", "count", "parameters", "weights", "activations")
_PART = re.compile(r"\.(?!\*)")
"""Border between a module and its part; the star of numbered ones belongs to their list."""


def part_rows(stages: Sequence[StagePlan]) -> list[tuple[str, list[str]]]:
    """Return layers and parameters of each stage, each part that any stage has in GiB, and the sums.

    Where the peak is not the time of most activations, as in an update of the weights, they are a row of their own.
    """
    decimals = decimals_of(max(stage.peak_bytes for stage in stages))

    def sizes(size: Callable[[StagePlan], int]) -> list[str]:
        return [gib(size(stage), decimals) for stage in stages]

    held = [part for part in PARTS if any(stage.parts.get(part) for stage in stages)]
    rows = [
        ("layers", [stage.layers for stage in stages]),
        ("parameters", [count(stage.parameters) for stage in stages]),
        *((part, [gib(stage.parts.get(part, 0), decimals) for stage in stages]) for part in held),
        ("peak, GiB", sizes(lambda stage: stage.peak_bytes)),
        ("of it tensors", sizes(lambda stage: stage.allocated_bytes)),
    ]
    if any(stage.most_activations > stage.parts.get("activations", 0) for stage in stages):
        rows.append(("most activations", sizes(lambda stage: stage.most_activations)))
    if any(stage.host_bytes >= MIB for stage in stages):
        rows.append(("host memory", sizes(lambda stage: stage.host_bytes)))
    return rows


def module_text(plan: Plan) -> str:
    """Return a table for each stage that was traced; bytes in MiB."""
    return "\n\n".join(
        "\n".join([f"stage {stage.stage}, MiB; activations: what one micro-batch keeps", *_lines(stage.modules)])
        for stage in plan.stages
    )


def module_cells(rows: Sequence[ModuleRow], indent: str) -> list[tuple[str, ...]]:
    """Return a line of cells for each kind of module, as `MODULE_HEAD` names them, and their sums."""
    cells: list[tuple[str, ...]] = []
    for depth, label, row in nested(rows):
        numbers = ("", "", "", "") if row is None else (str(row.count), *_numbers([row]))
        cells.append((indent * depth + label, *numbers))
    return [*cells, ("sum", "", *_numbers(rows))]


def nested(rows: Sequence[ModuleRow]) -> list[tuple[int, str, ModuleRow | None]]:
    """Return the rows as a tree: depth, last part of the name, and the row; None for a name above others.

    Modules come in the order in which they or their first part are in `rows`.
    """
    known = {row.name: row for row in rows}
    tree: dict[str, dict[str, None]] = {"": {}}
    for row in rows:
        above = ""
        for part in _PART.split(row.name):
            name = f"{above}.{part}" if above else part
            tree[above].setdefault(name)
            tree.setdefault(name, {})
            above = name

    def walk(above: str, depth: int) -> Iterator[tuple[int, str, ModuleRow | None]]:
        for name in tree[above]:
            yield depth, _PART.split(name)[-1], known.get(name)
            yield from walk(name, depth + 1)

    return list(walk("", 0))


def _lines(rows: Sequence[ModuleRow]) -> list[str]:
    cells = [MODULE_HEAD, *module_cells(rows, "  ")]
    width = max(len(row[0]) for row in cells)
    return [f"{row[0]:<{width}}{row[1]:>7}{row[2]:>12}{row[3]:>10}{row[4]:>13}".rstrip() for row in cells]


def _numbers(rows: Sequence[ModuleRow]) -> tuple[str, str, str]:
    parameters = sum(row.parameters for row in rows)
    sizes = (sum(row.weights for row in rows), sum(row.activations for row in rows))
    weights, activations = (f"{size / MIB:,.1f}" if size else "-" for size in sizes)
    return count(parameters) if parameters else "-", weights, activations
