"""Outcomes: what became of each setting of a source."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.tools.migrate.setting import SourceLine

Fate = Literal["carried over", "replaced", "no effect", "not supported", "not known"]
NOT_TAKEN = "it is ignored"


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One line of the report."""

    fate: Fate  # the list in which it stands
    written: str  # the setting as the source writes it: "--num-layers"
    text: str  # the key it became, what replaces it, why it has no effect, or what changes
    place: SourceLine | None = None  # where the source states it; None for a default
    keys: tuple[str, ...] = ()  # of the recipe that it became
    note: str = ""  # what is different, of a setting that is carried over
    accept: str = ""  # name for --accept, of a setting without which the model computes something else

    @property
    def line(self) -> str:
        """Return the text with its place, as a sentence."""
        text = str(self)
        return text if text.endswith("?") else f"{text}."

    def __str__(self) -> str:
        place = "" if self.place is None else f" ({self.place})"
        return f"{self.written}{place}: {self.text}"


_WIDTH = 110
_TITLES = {
    "replaced": "Replaced",
    "no effect": "No effect here",
    "not supported": "Not supported: this changes",
    "not known": "Not known",
}


def report(outcomes: Sequence[ReportLine]) -> str:
    """Return the lists; the first has names, and lines for what differs, since the recipe comments each value."""
    carried = list(dict.fromkeys(outcome.written for outcome in outcomes if outcome.fate == "carried over"))
    lines = list(wrapped(f"Carried over ({len(carried)}): {', '.join(carried) or 'nothing'}"))
    notes = [f"{outcome}: {outcome.note}" for outcome in outcomes if outcome.fate == "carried over" and outcome.note]
    lines += [line for text in dict.fromkeys(notes) for line in wrapped(f"- {text}.", "  ")]
    for fate, title in _TITLES.items():
        found = list(dict.fromkeys(outcome.line for outcome in outcomes if outcome.fate == fate))
        if found or fate != "not known":
            lines.append(f"{title} ({len(found)})" + ":" * bool(found))
        lines += [line for text in found for line in wrapped(f"- {text}", "  ")]
    return "\n".join(lines)


def remarks(outcomes: Sequence[ReportLine]) -> list[str]:
    """Return what is not in a recipe though it changes something, as lines for the recipe's own head."""
    titles = {"not supported": "Not supported", "not known": "Not known"}
    found = dict.fromkeys(f"{titles[each.fate]}: {each.line}" for each in outcomes if each.fate in titles)
    return [line for text in found for line in wrapped(text)]


def wrapped(text: str, indent: str = "") -> Iterator[str]:
    """Yield a text in lines of one width."""
    further = "  " if not indent else f"{indent}  "
    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False, break_long_words=False
    )
