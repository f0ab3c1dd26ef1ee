"""Words of a command line, each of the line that it is written on."""

from __future__ import annotations

from pretrain.tools.migrate.setting import RuntimeValue, SourceLine, Word


def words_of(text):
    """Return the words of a text's lines; `$NAME` in a word is a value that is not known."""
    return [
        word(part, SourceLine("train.sh", number))
        for number, line in enumerate(text.splitlines(), start=1)
        for part in line.split()
    ]


def word(text, place):
    if "$" not in text:
        return Word(text, place)
    known, name = text.split("$")
    return Word(known, place, (RuntimeValue(name, place, f"${name}"),))
