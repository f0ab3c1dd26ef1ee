"""Memory by kind of module, as a table of lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.tools.plan.units import MIB, count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.tools.plan.plan import Plan
    from pretrain.tools.plan.stage_plan import ModuleRow

HEAD = ("module", "count", "parameters", "weights", "activations")
_PART = re.compile(r"\.(?!\*)")
"""Border between a module and its part; the star of numbered ones belongs to their list."""


def module_text(plan: Plan) -> str:
    """Return a table for each stage that was traced; bytes in MiB."""
    return "\n\n".join(
        "\n".join([f"stage {stage.stage}, MiB; activations: what one micro-batch keeps", *_lines(stage.modules)])
        for stage in plan.stages
    )


def nested(rows: Sequence[ModuleRow]) -> list[tuple[int, str, ModuleRow | None]]:
    """Return the rows as a tree: depth, last part of the name, and the row; None for a name above others.

    Modules come in the order in which they or their first part are in `rows`.
    """
    known = {row.name: row for row in rows}
    tree: dict[str, None] = {}
    for row in rows:
        parts = _PART.split(row.name)
        for size in range(1, len(parts) + 1):
            tree.setdefault(".".join(parts[:size]))
    return [(depth, label, known.get(name)) for depth, label, name in _walk(list(tree), "", 0)]


def _walk(names: Sequence[str], above: str, depth: int) -> Iterator[tuple[int, str, str]]:
    for name in names:
        parent, label = _divided(name)
        if parent == above:
            yield depth, label, name
            yield from _walk(names, name, depth + 1)


def _divided(name: str) -> tuple[str, str]:
    parts = _PART.split(name)
    return ".".join(parts[:-1]), parts[-1]


def _lines(rows: Sequence[ModuleRow]) -> list[str]:
    cells = [HEAD]
    for depth, label, row in nested(rows):
        name = "  " * depth + label
        cells.append((name, "", "", "", "") if row is None else (name, *_cells(row)))
    cells.append(("sum", "", *_sums(rows)))
    width = max(len(row[0]) for row in cells)
    return [f"{row[0]:<{width}}{row[1]:>7}{row[2]:>12}{row[3]:>10}{row[4]:>13}".rstrip() for row in cells]


def _cells(row: ModuleRow) -> tuple[str, str, str, str]:
    parameters = count(row.parameters) if row.parameters else "-"
    return f"{row.count}", parameters, _mib(row.weights), _mib(row.activations)


def _sums(rows: Sequence[ModuleRow]) -> tuple[str, str, str]:
    return (
        count(sum(row.parameters for row in rows)),
        _mib(sum(row.weights for row in rows)),
        _mib(sum(row.activations for row in rows)),
    )


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}" if size else "-"
