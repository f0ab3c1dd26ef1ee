"""The builtins that declare variables: export, declare, typeset, local and readonly."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.shell.flow import NEXT
from pretrain.tools.migrate.shell.spans import known
from pretrain.tools.migrate.shell.syntax.tree import Assignment
from pretrain.tools.migrate.shell.values.assigning import assign
from pretrain.tools.migrate.shell.values.state import Cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.migrate.shell.caller import Caller
    from pretrain.tools.migrate.shell.flow import Flow
    from pretrain.tools.migrate.shell.values.expansion import Field
    from pretrain.tools.migrate.shell.values.state import State


def refused(field: Field, why: str) -> MigrateError:
    """Return the error of a form that is not read."""
    msg = f"{field.place}: {field.text.text!r} is not read: {why}."
    msg += "\nReading follows what bash does without options that change its syntax.\nName a script without it."
    return MigrateError(msg)


def declare(shell: Caller, state: State, fields: Sequence[Field], assigned: Sequence[Assignment]) -> Flow:
    """Follow export, declare, typeset, local and readonly."""
    name = fields[0].text.text
    plain = [field for field in fields[1:] if field.asked or not re.match(r"[-+]", field.text.text)]
    flags = "".join(field.text.text for field in fields[1:] if field not in plain)
    if name == "local" and len(state.frames) == 1:
        state.status = 1
        return {NEXT: state}
    if "n" in flags and name != "export":
        raise refused(fields[0], "a name for another variable")
    if re.search(r"[fFp]", flags):
        state.output = None
        state.status = None
        return {NEXT: state}
    declared: list[Assignment | Field] = [*assigned, *plain]
    local = name == "local" or (name in {"declare", "typeset"} and len(state.frames) > 1 and "g" not in flags)
    if "g" in flags and len(state.frames) > 1:
        for variable in declared:
            for frame in state.frames:
                frame[_variable(variable)] = Cell(None, is_array=True, why="declare -g sets it")
        state.status = None
        return {NEXT: state}
    if not local:  # one that is lent to a function stays set if that exports it
        names = {_variable(variable) for variable in declared}
        state.unsure |= names & set().union(*shell.lent)
    for assignment in assigned:
        assign(assignment, state, shell.expansion(state), local=local)
        _mark(state, assignment.name, name, flags)
    for field in plain:
        _declare_word(shell, state, field, (name, flags), local=local)
    state.status = 0
    return {NEXT: state}


def _variable(declared: Assignment | Field) -> str:
    return declared.name if isinstance(declared, Assignment) else declared.text.text.partition("=")[0]


def _declare_word(_shell: Caller, state: State, field: Field, form: tuple[str, str], *, local: bool) -> None:
    """Follow a word of a declaration that is no assignment as the script writes it."""
    found = re.match(r"([A-Za-z_]\w*)(=?)", field.text.text, re.ASCII)
    ends = found is not None and (bool(found[2]) or found.end() == len(field.text.text))
    if not field.is_one or (field.asked and not (found and found[2])) or found is None or not ends:
        state.forget_all(f"{form[0]} at {field.place} may set it")
    elif found[2] and field.asked:
        state.forget(found[1], f"{form[0]} sets it")
    elif found[2]:
        state.put(found[1], Cell({0: known(field.text.text[found.end() :], field.place)}), local=local)
    elif local and found[1] not in state.frames[-1]:
        state.put(found[1], Cell({}, is_array="a" in form[1] or "A" in form[1]), local=True)
    if found:
        _mark(state, found[1], *form)


def _mark(state: State, variable: str, name: str, flags: str) -> None:
    """Note what a declaration says of a variable besides its value."""
    frame = next((frame for frame in reversed(state.frames) if variable in frame), None)
    if frame is None:
        if set(flags) & set("iluA") or name == "readonly" or "r" in flags:
            state.frames[0][variable] = Cell(None, is_array=True, is_opaque=True, why=f"{name} {flags}")
        return
    cell = frame[variable]
    is_exported = cell.is_exported or name == "export" or "x" in flags
    if (name == "export" and "n" in flags) or "+" in flags:
        is_exported = False
    is_opaque = cell.is_opaque or name == "readonly" or bool(set(flags) & set("iluAr"))
    elements = None if set(flags) & set("iluA") else cell.elements
    is_array = cell.is_array or bool(set(flags) & set("aA"))
    frame[variable] = Cell(elements, is_array, is_exported, is_opaque, cell.why)
