"""Builtins of the shell that change what follows: export, shift, set, read, eval and so on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.tools.migrate.setting import Asked
from pretrain.tools.migrate.shell import conditions, written_files
from pretrain.tools.migrate.shell.declarations import declare, refused
from pretrain.tools.migrate.shell.flow import EXIT, NEXT, RETURN
from pretrain.tools.migrate.shell.spans import Text, known
from pretrain.tools.migrate.shell.syntax.simple import DECLARATIONS
from pretrain.tools.migrate.shell.values.arithmetic import UnresolvedError
from pretrain.tools.migrate.shell.values.expansion import FILES, arguments_of
from pretrain.tools.migrate.shell.values.state import NONZERO, Arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.tools.migrate.setting import Place
    from pretrain.tools.migrate.shell.caller import Caller
    from pretrain.tools.migrate.shell.flow import Flow
    from pretrain.tools.migrate.shell.syntax.tree import Assignment
    from pretrain.tools.migrate.shell.values.expansion import Field
    from pretrain.tools.migrate.shell.values.state import State

    Builtin = Callable[[Caller, State, Sequence[Field], Sequence[Assignment]], Flow]

KEEP_ENVIRONMENT = {"eval", "source", "."}
"""Builtins that run other statements, which see NAME=value before them."""

_NAME = re.compile(r"([A-Za-z_]\w*)(?:\[.*\])?", re.ASCII | re.DOTALL)
_LETTERS = {
    "e": "errexit", "u": "nounset", "x": "xtrace", "f": "noglob", "v": "verbose", "a": "allexport", "h": "hashall",
    "b": "notify", "m": "monitor", "E": "errtrace", "T": "functrace", "C": "noclobber", "B": "braceexpand",
}  # fmt: skip
_OPTIONS = {*_LETTERS.values(), "pipefail", "history", "vi", "emacs", "ignoreeof", "histexpand"}
_SHOPTS = {
    *[
        "nullglob",
        "dotglob",
        "globstar",
        "failglob",
        "nocaseglob",
        "inherit_errexit",
        "checkwinsize",
        "huponexit",
        "cmdhist",
        "histappend",
    ]
}


def asked(assignment: Assignment, why: str) -> Asked:
    """Return what asks for the variable of an assignment."""
    return Asked(assignment.name, assignment.place, why)


def _next(state: State, status: int | None = 0) -> Flow:
    state.status = status
    return {NEXT: state}


def _nothing(_shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    """Follow a builtin without effect on variables; of `true` and the like the status is known."""
    status = {":": 0, "true": 0, "false": 1, "trap": 0}.get(fields[0].text.text)
    if status is None:
        state.output = None
    return _next(state, status)


def _moved(_shell: Caller, state: State, _fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    for name in ("PWD", "OLDPWD"):
        state.forget(name, "the folder was changed")
    return _next(state, None)


def _echo(shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    text = written_files.echoed(fields[1:]) if len(fields) > 1 else known("\n", fields[0].place)
    _emit(shell, state, text, fields[0].place)
    return _next(state)


def _emit(shell: Caller, state: State, text: Text | None, place: Place) -> None:
    if text is not None:
        shell.budget.spend(text.spans[0].place if text.spans else place, characters=len(text.spans))
    state.output = state.output + text if state.output is not None and text is not None else None


def _printf(shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    if len(fields) > 1 and fields[1].text.text.startswith("-"):
        _forget_named(state, fields[2:3], "printf -v")
        _emit(shell, state, None, fields[0].place)
        return _next(state, None)
    _emit(shell, state, written_files.printed(fields[1:]), fields[0].place)
    return _next(state, None)


def _forget_named(state: State, fields: Sequence[Field], why: str) -> None:
    """Forget every variable that a word may name."""
    for field in fields:
        name = _NAME.fullmatch(field.text.text)
        if field.asked or not field.is_one:
            state.forget_all(f"{why} at {field.place} may set it")
        elif name:
            state.forget(name[1], f"{why} sets it")


def _read(_shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    _forget_named(state, fields[1:], fields[0].text.text)
    for name in ("REPLY", "MAPFILE", "OPTARG", "OPTIND"):
        state.forget(name, f"{fields[0].text.text} sets it")
    return _next(state, None)


def _let(shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    status: int | None = 1
    for field in fields[1:]:
        try:
            if not field.is_one and any(value.why != FILES for value in field.asked):
                raise UnresolvedError
            text = Text(tuple(span for span in field.text.spans if span.asked is None or span.asked.why != FILES))
            status = int(shell.expansion(state).parameters.number(text, field.place) == 0)
        except UnresolvedError:
            state.forget_all(f"let at {field.place} may set it")
            status = None
    return _next(state, status)


def _test(_shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    inside = fields[1:]
    if fields[0].text.text == "[":
        if not inside or inside[-1].text.text != "]":
            return _next(state, None if any(not field.is_one for field in fields) else 2)
        inside = inside[:-1]
    found = conditions.test_holds(inside)
    return _next(state, None if found is None else int(not found))


def _number(fields: Sequence[Field], default: int) -> int | None:
    """Return a builtin's argument as a number; None if it is unknown or none."""
    if len(fields) < 2:
        return default
    text = fields[1].text.text
    return int(text) if fields[1].is_one and not fields[1].asked and re.fullmatch(r"[0-9]{1,9}", text) else None


def _exit(_shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    state.status = state.status if len(fields) < 2 else _status(_number(fields, 0))
    return {EXIT: state}


def _return(shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    if not shell.budget.depth:
        return _next(state, NONZERO)
    state.status = state.status if len(fields) < 2 else _status(_number(fields, 0))
    return {RETURN: state}


def _status(number: int | None) -> int | None:
    return None if number is None else number % 256


def _leave(_shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    level = _number(fields, 1)
    if not level:
        raise refused(fields[0], "the number of loops is not known")
    return {(fields[0].text.text, level): state}


def _shift(_shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    arguments, count = state.arguments, _number(fields, 1)
    if count is None:
        place = fields[0].place
        state.arguments = Arguments((), Asked("@", place, "shift by an unknown number"))
        return _next(state, None)
    if count <= len(arguments.known):
        state.arguments = Arguments(arguments.known[count:], arguments.rest, arguments.offset)
        return _next(state)
    if not arguments.rest:
        return _next(state, 1)
    offset = None if arguments.offset is None else arguments.offset + count - len(arguments.known)
    state.arguments = Arguments((), arguments.rest, offset)
    return _next(state, None)


def _set(_shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    at = 1
    while at < len(fields) and not fields[at].asked and re.match(r"[-+].", fields[at].text.text):
        flag = fields[at].text.text
        at += 1
        if flag == "--":
            break
        for letter in flag[1:]:
            name = _LETTERS.get(letter, "")
            if letter == "o":
                name, at = (fields[at].text.text if at < len(fields) else "history"), at + 1
            if name not in _OPTIONS or (name == "braceexpand" and flag[0] == "+" and letter != "B"):
                raise refused(fields[at - 1], "the option is not known")
            state.options[name] = flag[0] == "-"
    if at < len(fields) or (len(fields) > 1 and fields[at - 1].text.text == "--"):
        state.arguments = arguments_of(fields[at:])
    if len(fields) == 1:
        state.output = None
    return _next(state)


def _shopt(_shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    texts = [field.text.text for field in fields[1:]]
    if any(text.startswith("-") and text.strip("-suqp") for text in texts):
        raise refused(fields[0], "its options are not known")
    for field in fields[1:]:
        if field.asked or (not field.text.text.startswith("-") and field.text.text not in _SHOPTS and "-s" in texts):
            raise refused(field, "it changes how scripts are understood")
    return _next(state, None)


def _unset(_shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    flags = {field.text.text for field in fields[1:] if field.text.text.startswith("-")}
    for field in fields[1:]:
        name = field.text.text
        if field.asked or not field.is_one:
            state.forget_all(f"unset at {field.place} may unset it")
        elif name in flags:
            continue
        elif "-f" in flags or (not flags and name in state.functions and not _is_set(state, name)):
            state.functions.pop(name, None)
        elif _NAME.fullmatch(name):
            holder = next((n for n, frame in reversed(list(enumerate(state.frames))) if name in frame), 0)
            if "[" in name or 0 < holder < len(state.frames) - 1 or "-n" in flags:
                _forget_named(state, [field], "unset")
            else:
                state.unset(name)
    return _next(state)


def _is_set(state: State, name: str) -> bool:
    cell = state.cell(name)
    return cell is not None and cell.elements != {}


def _eval(shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    text = Text()
    for field in fields[1:]:
        text += (known(" ", field.place) if text.spans else Text()) + field.text
    place = fields[0].place
    if text.spans and text.spans[0].asked and len(text.spans) == 1:
        shell.start(fields, state)
        state.forget_all(f"eval at {place} may set it")
        return _next(state, None)
    return shell.evaluated(text, place, state)


def _source(shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    return shell.sourced(fields[1:], state) if len(fields) > 1 else _next(state, 2)


def _exec(shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    if len(fields) == 1:
        return _next(state)
    shell.start(fields, state)
    return {EXIT: state}


def _command(shell: Caller, state: State, fields: Sequence[Field], _assigned: Sequence[Assignment]) -> Flow:
    """Follow `command NAME` and `builtin NAME`, which pass over functions."""
    rest = fields[1:]
    if not rest or rest[0].text.text.startswith("-"):
        state.output = None
        return _next(state, None)
    if rest[0].text.text in DECLARATIONS:
        for field in rest[1:]:
            name = re.match(r"[A-Za-z_]\w*", field.text.text, re.ASCII)
            if field.asked and not name:
                state.forget_all("command")
            elif name:
                state.forget(name[0], "command")
        return _next(state, None)
    return shell.call(rest, state, {}, functions=False)


BUILTINS: dict[str, Builtin] = {
    **dict.fromkeys((":", "true", "false", "trap", "wait", "jobs", "disown", "bg", "fg", "kill", "pwd"), _nothing),
    **dict.fromkeys(("ulimit", "umask", "times", "history", "enable", "bind", "complete", "caller", "help"), _nothing),
    **dict.fromkeys(("alias", "unalias", "dirs", "suspend", "hash", "type"), _nothing),
    **dict.fromkeys(("cd", "pushd", "popd"), _moved), **dict.fromkeys(("test", "["), _test),
    **dict.fromkeys(("read", "mapfile", "readarray", "getopts"), _read), **dict.fromkeys(DECLARATIONS, declare),
    **dict.fromkeys(("source", "."), _source), **dict.fromkeys(("break", "continue"), _leave),
    **dict.fromkeys(("command", "builtin"), _command), **dict.fromkeys(("exit", "logout"), _exit),
    "echo": _echo, "printf": _printf, "let": _let, "return": _return, "shift": _shift, "set": _set, "shopt": _shopt,
    "unset": _unset, "eval": _eval, "exec": _exec,
}  # fmt: skip
"""What follows each builtin, by name."""
