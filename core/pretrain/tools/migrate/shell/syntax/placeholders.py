"""Values that examples leave to their reader, such as NAME=<Specify path>, which no shell reads: they become holes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.tools.migrate.setting import Asked
from pretrain.tools.migrate.shell.spans import Span, Written

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
    | (?P<comment>(?<![^\s;&|()])\#[^\n]*)
    | <<<
    | <<-?[ \t]*['"\\]?(?P<delimiter>\w+)(?P<rest>[^\n]*)\n
    | (?<![^\s;&|(])(?P<name>[A-Za-z_]\w*)\+?=(?P<assigned>{_ASSIGNED})
    | (?<=[\s=])(?P<value>{_VALUE})
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"\s#")
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


def without_ends_of_comments(text: str) -> str:
    """Return a text of the same length, whose comments end with another sign than a backslash.

    A comment ends at its line for bash; shfmt 3.14 joins the next line to the command before it.
    """
    for found in _tokens(text):
        group = "comment" if found["comment"] else "rest"
        if (found[group] or "").endswith("\\") and (group == "comment" or _COMMENT.search(found[group])):
            last = found.end(group) - 1
            text = f"{text[:last]}-{text[last + 1 :]}"
    return text


def _placeholders(text: str) -> Iterator[re.Match[str]]:
    """Yield what is written for them."""
    return (found for found in _tokens(text) if found["assigned"] or found["value"])


def _tokens(text: str) -> Iterator[re.Match[str]]:
    """Yield quotes, comments and placeholders; here-documents are passed over."""
    without_end: set[str] = set()
    found = _TOKEN.search(text) if len(text) <= _LONGEST else None
    while found:
        position, delimiter = found.end(), found["delimiter"]
        yield found
        if delimiter and delimiter not in without_end:
            end = re.compile(rf"^\t*{delimiter}$", re.MULTILINE).search(text, position)
            position = end.end() if end else position
            without_end |= set() if end else {delimiter}
        found = _TOKEN.search(text, position)
