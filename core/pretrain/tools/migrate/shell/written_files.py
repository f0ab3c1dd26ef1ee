"""Files that a script writes by cat, echo, printf and tee."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from pretrain.tools.migrate.shell.spans import Text, known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.migrate.shell.script import Command
    from pretrain.tools.migrate.shell.values.expansion import Field
    from pretrain.tools.migrate.shell.values.state import State

_CHANGES = {
    *[
        "sed",
        "perl",
        "awk",
        "gawk",
        "mv",
        "cp",
        "rm",
        "ln",
        "dd",
        "ed",
        "ex",
        "patch",
        "jq",
        "yq",
        "sponge",
        "envsubst",
        "install",
        "rsync",
        "truncate",
        "unlink",
        "ruby",
    ],
}
_COPIES = {"mv", "cp", "ln", "install", "rsync"}
_READS_NOTHING = {
    *["mkdir", "ls", "tee", "chmod", "date", "sleep", "touch", "cat", "cp", "mv", "rm", "sed", "hostname", "pwd"]
}


def same_path(state: State, path: str) -> str:
    """Return a path as the script wrote it first."""
    normal = posixpath.normpath(path)
    return next((known for known in state.files if posixpath.normpath(known) == normal), path)


def written(state: State, path: str, text: Text | None, *, appends: bool, between: Sequence[Command]) -> None:
    """Note what a file holds after a statement.

    Args:
        state: after the statement.
        path: as the script writes it.
        text: that is written; None if unknown.
        appends: whether to what is there already.
        between: commands since it was last written, which may have read it.
    """
    if path.startswith("/dev/"):
        return
    path = same_path(state, path)
    before = state.files.get(path) if path in state.files else None
    is_read = any(
        posixpath.basename(command.words[0].text) not in _READS_NOTHING for command in between if command.words
    )
    if path in state.files and is_read and not (before is not None and before == text and not appends):
        text = None
    if appends:
        text = before + text if before is not None and text is not None else None
    state.files[path] = text


def changed(state: State, fields: Sequence[Field]) -> None:
    """Note that a program such as sed may have changed the files that its arguments name."""
    name = posixpath.basename(fields[0].text.text) if fields else ""
    texts = [field.text.text for field in fields[1:]]
    if name not in _CHANGES or (
        name in {"sed", "perl"} and not any(re.match(r"-\w*i|--in-place", text) for text in texts)
    ):
        return
    for number, text in enumerate(texts, 1):
        path = same_path(state, text)
        if path in state.files or (number == len(texts) and name in _COPIES and not text.startswith("-")):
            state.files[path] = None


def echoed(fields: Sequence[Field]) -> Text | None:
    """Return what `echo` prints; None if unknown."""
    if not all(field.is_one for field in fields):
        return None
    end, first = "\n", 0
    for field in fields:
        if field.text.text not in {"-n", "-e", "-E", "-ne", "-en"} or not field.text.is_known:
            break
        end = "" if "n" in field.text.text else end
        first += 1
    found = Text()
    for number, field in enumerate(fields[first:]):
        found += (known(" ", field.place) if number else Text()) + field.text
    if "\\" in found.text and (first or any(field.asked for field in fields)):
        return None
    return found + known(end, fields[0].place) if fields else None


def printed(fields: Sequence[Field]) -> Text | None:
    """Return what `printf` prints, for formats of one text or none; None if unknown."""
    if not fields or not all(field.is_one for field in fields) or fields[0].asked:
        return None
    form, place = fields[0].text.text, fields[0].place
    if form in {"%s\\n", "%s"} and len(fields) == 2:
        return fields[1].text + known("\n" if form.endswith("n") else "", place)
    plain = form.removesuffix("\\n")
    if len(fields) > 1 or "%" in plain or "\\" in plain:
        return None
    return known(plain + "\n" * (plain != form), place)


def passed_on(name: str, fields: Sequence[Field], state: State) -> Text | None:
    """Return what a program that is not a builtin prints: cat and tee their input, of others nothing is known."""
    paths = [field for field in fields if not field.text.text.startswith("-")]
    if name == "tee" or (name == "cat" and not fields):
        return state.input
    return state.input if name == "cat" and not paths and [field.text.text for field in fields] == ["-"] else None
