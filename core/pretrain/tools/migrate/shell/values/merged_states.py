"""Knowledge of a shell where either of two states may be the true one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pretrain.tools.migrate.setting import Asked, Place
from pretrain.tools.migrate.shell.spans import shortened
from pretrain.tools.migrate.shell.values.state import NONZERO, Arguments, Cell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.shell.values.state import State


DEPENDS = "its value depends on what only running the script tells"
"""Why a variable is unknown that either of two states sets otherwise."""


def depends_on(state: State, condition: str, place: Place) -> None:
    """Name the condition on which variables depend that were just merged."""
    where = f"in line {place.line}" if place.source == state.budget.source and place.line else f"at {place}"
    for frame in state.frames:
        for name, cell in frame.items():
            if cell.why == DEPENDS:
                frame[name] = replace(cell, why=f"its value depends on {shortened(condition)} {where}")


def merged(first: State | None, second: State | None) -> State | None:
    """Return what is known where either state may be the true one."""
    if first is None or second is None:
        return second if first is None else first
    state = first.copy()
    state.frames = [_merged_frame(a, b) for a, b in zip(first.frames, second.frames, strict=True)]
    mixed = {
        name
        for a, b in zip(first.frames[1:], second.frames[1:], strict=True)
        for name in a.keys() ^ b.keys()
    }  # fmt: skip
    state.unsure = first.unsure | second.unsure | mixed
    names = first.functions.keys() | second.functions.keys()
    state.functions = {name: _agreed(first.functions.get(name), second.functions.get(name)) for name in names}
    paths = [*first.files, *(path for path in second.files if path not in first.files)]
    state.files = {path: _agreed(first.files.get(path), second.files.get(path)) for path in paths}
    options = first.options.keys() | second.options.keys()
    state.options = {name: _agreed(first.options.get(name, False), second.options.get(name, False)) for name in options}
    if first.arguments != second.arguments:
        state.arguments = _merged_arguments(first.arguments, second.arguments)
    state.status = _status(first.status, second.status)
    state.output = _agreed(first.output, second.output)
    return state


def _merged_frame(first: Mapping[str, Cell], second: Mapping[str, Cell]) -> dict[str, Cell]:
    names = [*first, *(name for name in second if name not in first)]
    return {name: _merged_cell(first.get(name), second.get(name)) for name in names}


def _merged_cell(first: Cell | None, second: Cell | None) -> Cell:
    why = DEPENDS
    if first is None or second is None:
        one = first or second
        return Cell(None, is_array=one is not None and one.is_array, is_opaque=bool(one and one.is_opaque), why=why)
    elements = first.elements if first.elements == second.elements else None
    whys = [cell.why for cell in (first, second) if cell.elements is None and cell.why]
    return Cell(
        elements,
        is_array=first.is_array or second.is_array,
        is_exported=first.is_exported and second.is_exported,
        is_opaque=first.is_opaque or second.is_opaque,
        why="" if elements is not None else whys[0] if whys else why,
    )


def _merged_arguments(first: Arguments, second: Arguments) -> Arguments:
    both = list(zip(first.known, second.known, strict=False))
    same = next((number for number, (a, b) in enumerate(both) if a != b), len(both))
    why = "the arguments depend on what only running the script tells"
    rest = first.rest or second.rest
    place = rest.place if rest else Place("arguments")
    return Arguments(first.known[:same], Asked("@", place, why))


_T = TypeVar("_T")


def _agreed(first: _T | None, second: _T | None) -> _T | None:
    return first if first == second else None


def _status(first: int | None, second: int | None) -> int | None:
    if first == second:
        return first
    return None if first is None or second is None or 0 in {first, second} else NONZERO
