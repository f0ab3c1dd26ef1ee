"""Values that examples leave to their reader, such as NAME=<Specify path>, which no shell reads: they become holes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.migrate.setting import Asked
from pretrain.migrate.shell.spans import Span, Written

if TYPE_CHECKING:
    from collections.abc import Iterator

_LETTER = r"A-Za-z\u0080-\U0010ffff"
_VALUE = rf"<[{_LETTER}][^<>\n|&;\"'`$]*[{_LETTER}_./-]>"
_ASSIGNED = r"<[^<>\n]+>(?:[ \t]*(?:\\\n[ \t]*)?\(e\.g\.[^\n()]*\))?"
_TOKEN = re.compile(
    rf"""
      \\.
    | '[^']*'
    | "(?:[^"\\]|\\.)*"
    | (?<![^\s;&|()])\#[^\n]*
    | <<<
    | <<-?[ \t]*['"\\]?(?P<delimiter>\w+)[^\n]*\n
    | (?<![^\s;&|(])(?P<name>[A-Za-z_]\w*)\+?=(?P<assigned>{_ASSIGNED})
    | (?<=[\s=])(?P<value>{_VALUE})
    """,
    re.VERBOSE | re.DOTALL,
)
_LONGEST = 100_000
"""Characters of a text in which they are looked for; an example of a script has fewer."""


def without_placeholders(written: Written) -> Written:
    """Return a text with a hole for each placeholder.

    Quotes, comments and here-documents are passed over, as far as they can be told without a grammar: one that is
    taken for a placeholder by mistake is asked for, and one that is missed is refused.
    """
    spans: list[Span] = []
    first = 0
    for found in _placeholders(written.text):
        group = "assigned" if found["assigned"] else "value"
        start, end = found.span(group)
        place = written.place(start)
        asked = Asked(found["name"] or found["value"], place, found[group])
        spans += [*written.between(first, start).spans, Span("", place, asked)]
        first = end
    if not spans:
        return written
    return Written([*spans, *written.between(first, len(written.text)).spans], written.end)


def _placeholders(text: str) -> Iterator[re.Match[str]]:
    """Yield what is written for them."""
    without_end: set[str] = set()
    found = _TOKEN.search(text) if len(text) <= _LONGEST else None
    while found:
        position, delimiter = found.end(), found["delimiter"]
        if found["assigned"] or found["value"]:
            yield found
        elif delimiter and delimiter not in without_end:
            end = re.compile(rf"^\t*{delimiter}$", re.MULTILINE).search(text, position)
            position = end.end() if end else position
            without_end |= set() if end else {delimiter}
        found = _TOKEN.search(text, position)
