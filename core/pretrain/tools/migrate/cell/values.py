"""Markers: words that stand for values which are not known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.tools.migrate.setting import Asked, Word

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Place

MARKER = re.compile("\u27e6([^\u27e6\u27e7]*)\u27e7")

_HIDDEN = str.maketrans("<> ", "\u2039\u203a\u2423")
_SHOWN = str.maketrans("\u2039\u203a\u2423", "<> ")
"""Signs of a placeholder that bash would not leave alone, and those in their place."""

_HOLE = r"<[A-Za-z\u0080-\U0010ffff][^<>\n|&;\"'`$]*[\w./-]>"
_PLACEHOLDER = re.compile(
    rf"^(?P<before>[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_]\w*)=[\"']?)(?P<value>{_HOLE})"
    r"(?P<note>[ \t]*\(e\.g\.[^\n()]*\))?"
    rf"|(?<=[\s=\"'])(?P<other>{_HOLE})",
    re.MULTILINE,
)


def marker(name: str) -> str:
    """Return the word that stands for a value."""
    return f"\u27e6{name}\u27e7"


def without_placeholders(text: str, defined: Mapping[str, str]) -> str:
    """Return a script whose placeholders, NAME=<Specify path>, are markers: bash would take them for redirections."""

    def filled(found: re.Match[str]) -> str:
        name = found["name"] or found["other"]
        return (found["before"] or "") + defined.get(name, marker(name.translate(_HIDDEN)))

    return _PLACEHOLDER.sub(filled, text)


def word_of(text: str, place: Place, reasons: Mapping[str, tuple[Place, str]]) -> Word:
    """Return a word in which what is not known is asked for.

    Args:
        text: it, with markers.
        place: where it stands.
        reasons: place and text of the command that made a value, by its name.
    """
    return Word(MARKER.sub("", text), place, asked_in(text, place, reasons))


def asked_in(text: str, place: Place, reasons: Mapping[str, tuple[Place, str]]) -> tuple[Asked, ...]:
    """Return what is asked for of a text with markers."""
    names = dict.fromkeys(name.translate(_SHOWN) for name in MARKER.findall(text))
    return tuple(Asked(name, *reasons.get(name, (place, _written(name)))) for name in names)


def _written(name: str) -> str:
    return name if name.startswith("<") else f"${name}"
