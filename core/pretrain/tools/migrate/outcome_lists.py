"""The report of a migration: what was carried over, replaced, without effect, and not supported."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.tools.migrate.outcome import Outcome

_WIDTH = 110
_TITLES = {
    "replaced": "Replaced",
    "no effect": "No effect here",
    "not supported": "Not supported: this changes",
}


def report(outcomes: Sequence[Outcome]) -> str:
    """Return the four lists; the first has names, and lines for what differs, since the recipe comments each value."""
    carried = list(dict.fromkeys(outcome.written for outcome in outcomes if outcome.fate == "carried over"))
    lines = list(_wrapped(f"Carried over ({len(carried)}): {', '.join(carried) or 'nothing'}"))
    notes = [f"{outcome}: {outcome.note}" for outcome in outcomes if outcome.fate == "carried over" and outcome.note]
    lines += [line for text in dict.fromkeys(notes) for line in _wrapped(f"- {text}.", "  ")]
    for fate, title in _TITLES.items():
        found = list(dict.fromkeys(str(outcome) for outcome in outcomes if outcome.fate == fate))
        lines.append(f"{title} ({len(found)})" + ":" * bool(found))
        lines += [line for text in found for line in _wrapped(f"- {text}.", "  ")]
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "") -> Iterator[str]:
    further = "  " if not indent else f"{indent}  "
    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False, break_long_words=False
    )
