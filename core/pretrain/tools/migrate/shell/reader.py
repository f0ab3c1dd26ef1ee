"""Reading of shell scripts: their statements are followed as bash would execute them, and nothing is executed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Asked, Place
from pretrain.tools.migrate.shell.flow import EXIT, NEXT, RETURN, end
from pretrain.tools.migrate.shell.script import Script
from pretrain.tools.migrate.shell.simple_commands import Commands, statements_of
from pretrain.tools.migrate.shell.spans import Written, known
from pretrain.tools.migrate.shell.syntax.grammar import parse
from pretrain.tools.migrate.shell.values.state import Arguments, Budget, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.shell.flow import Flow
    from pretrain.tools.migrate.shell.spans import Text
    from pretrain.tools.migrate.shell.syntax.tree import Statements


def read_script(path: Path, defined: Mapping[str, str]) -> Script:
    """Return the commands of a script, and the files that it writes, without running any of it.

    Args:
        path: its file.
        defined: values by the names of variables, which win over the script's own; "1", "2", ... are the script's
            arguments, and "@" is all of them, separated by blanks and quoted as in a shell.

    Raises:
        MigrateError: the file, or one that it sources, cannot be read, is no shell script, or has no end.
    """
    return _followed(statements_of(path), path, defined)


def read_text(text: str, place: Place, defined: Mapping[str, str]) -> Script:
    """Return the commands of a text; all of it stands at one place, such as "--args".

    Args:
        text: statements of a shell.
        place: where it is written.
        defined: as for `read_script`.

    Raises:
        MigrateError: it is no text of a shell.
    """
    written = Written(known(text, place).spans, place)
    return _followed(parse(written), Path(place.source), defined)


def _followed(statements: Statements, path: Path, defined: Mapping[str, str]) -> Script:
    shell = Commands(path, Budget(str(path)))
    state = State(dict(defined), shell.budget, arguments=_arguments(defined, str(path)))
    if _begins_strictly(path):
        state.options["errexit"] = None
    try:
        flow = shell.run(statements, state)
        files = _files(flow)
    except RecursionError as error:
        msg = f"{path}: its statements are nested too deep.\nA launch script nests a few.\nName a simpler script."
        raise MigrateError(msg) from error
    return Script(
        tuple(shell.commands),
        {name: text.text for name, text in files.items() if text is not None and text.is_known},
        {name: text.asked if text else () for name, text in files.items() if text is None or not text.is_known},
        tuple(shell.notices),
    )


def _files(flow: Flow) -> dict[str, Text | None]:
    """Return the files at the script's end; where it may end earlier, those of what goes on, if they are no others."""
    last = end({way: state for way, state in flow.items() if way in {NEXT, RETURN}})
    early = flow.get(EXIT)
    if last is None:
        return dict(early.files) if early else {}
    found = dict(last.files)
    for path, text in early.files.items() if early else ():
        found[path] = text if path not in found or found[path] == text else None
    return found


def _arguments(defined: Mapping[str, str], source: str) -> Arguments:
    place = Place(source)
    if "@" not in defined:
        return Arguments((), Asked("@", place, "$@"), 0)
    try:
        words = shlex.split(defined["@"])
    except ValueError as error:
        msg = f"The value {defined['@']!r} of @ is not understood: {error}."
        msg += "\nIt is the script's arguments, quoted as in a shell."
        msg += "\nSuch as --define @=\"8 'a b'\"."
        raise MigrateError(msg) from error
    return Arguments(tuple(known(word, place) for word in words))


def _begins_strictly(path: Path) -> bool:
    """Say whether the first line asks for `set -e`, which `bash FILE` would pass over."""
    if not path.is_file():
        return False
    with path.open("rb") as opened:
        first = opened.readline(200).split()
    return first[:1] == [b"#!/bin/bash"] and any(word.startswith(b"-") and b"e" in word for word in first[1:])
