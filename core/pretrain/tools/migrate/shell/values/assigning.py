"""Assignments: of texts, of elements, and of whole arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.shell.spans import Text
from pretrain.tools.migrate.shell.syntax.tree import Assignment
from pretrain.tools.migrate.shell.values.arithmetic import UnresolvedError
from pretrain.tools.migrate.shell.values.state import Cell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.shell.values.expansion import Expansion
    from pretrain.tools.migrate.shell.values.state import State


def assign(node: Assignment, state: State, expansion: Expansion, *, local: bool = False) -> None:
    """Set the variable that an assignment names."""
    cell = state.frames[-1].get(node.name) if local else state.cell(node.name)
    if isinstance(node.value, tuple):
        state.put(node.name, _array(node, cell, expansion), local=local)
        return
    text = expansion.single(node.value.parts, is_assignment=True).named(node.name)
    elements = dict(cell.elements) if cell and cell.elements is not None else None
    is_unknown = elements is None and (node.appends or node.index is not None or (cell is not None and cell.is_array))
    if node.appends and elements is None and cell is None and not node.index and not local:
        before = state.value(node.name, node.place)  # of the environment
        state.put(node.name, Cell({0: (before or Text()) + text}))
        return
    index = _index(node, expansion, elements or {})
    if index is None or (is_unknown and not local):
        state.forget(node.name, node.written)
        return
    elements = elements or {}
    elements[index] = elements.get(index, Text()) + text if node.appends else text
    is_array = node.index is not None or (cell is not None and cell.is_array)
    state.put(node.name, Cell(elements, is_array=is_array), local=local)


def _index(node: Assignment, expansion: Expansion, elements: Mapping[int, Text]) -> int | None:
    if node.index is None:
        return 0
    if any(text.is_many for text in elements.values()):
        return None
    try:
        index = expansion.parameters.number(expansion.single(node.index, is_quoted=True), node.place)
    except UnresolvedError:
        return None
    index += max(elements, default=-1) + 1 if index < 0 else 0
    return index if index >= 0 else None


def _array(node: Assignment, cell: Cell | None, expansion: Expansion) -> Cell:
    assert isinstance(node.value, tuple)  # noqa: S101  the caller looked
    found = dict(cell.elements or {}) if node.appends and cell else {}
    if node.appends and (cell is None or cell.elements is None):
        return Cell(None, is_array=True, why=node.written.split("\n")[0])
    position = max(found, default=-1) + 1
    for element in node.value:
        if element.index is not None:
            index = _index(
                Assignment(node.name, node.place, node.written, element.value, element.index),
                expansion, found,
            )  # fmt: skip
            if index is None:
                return Cell(None, is_array=True, why=node.written.split("\n")[0])
            found[index] = expansion.single(element.value.parts).named(node.name)
            position = index + 1
            continue
        for field in expansion.fields([element.value]):
            found[position] = field.text
            position += 1
    expansion.state.budget.spend(node.place, characters=sum(len(text.spans) + 20 for text in found.values()))
    return Cell(found, is_array=True)
