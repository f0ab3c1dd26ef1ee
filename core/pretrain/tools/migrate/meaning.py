"""Meanings that a setting of another program can have in a recipe."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Reason = Literal["replaced", "option", "no effect", "not read"]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A setting that becomes a key of the recipe."""

    key: str  # "section.key"
    values: Mapping[Any, Any] = field(default_factory=dict)  # what values are called here; a switch has True or False
    how: str = ""  # how the key is worked out where it needs other settings too; empty if this one alone gives it
    note: str = ""  # what is different here, for the user


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """A setting that a recipe does without."""

    reason: Reason  # "not read": the program's own GPT training does not read it either, such as one of BERT's
    text: str  # what replaces it, the option "--nproc" of a command here, or why it changes nothing

    def outcome(self, command: str) -> tuple[Literal["replaced", "no effect"], str]:
        """Return the list of the report in which it is, and the text there; `command` has the option."""
        text = f"{self.text} of {command}" if self.reason == "option" else self.text
        return ("replaced" if self.reason in {"replaced", "option"} else "no effect"), text


@dataclass(frozen=True, slots=True)
class NotSupported:
    """A setting that pretrain does not have."""

    change: str  # what changes for the user
    unless: tuple[Any, ...] = ()  # values, beside the program's own default, with which nothing changes
    other_model: bool = False  # whether the model computes something else then, so that the user has to accept it


Meaning = Mapped | NotNeeded | NotSupported


def read_meanings(table: str) -> dict[str, Meaning]:
    """Return a table of meanings by the names of settings; "*" in a name stands for all that follow."""
    return dict(meanings_in(table))


def meanings_in(table: str) -> Iterator[tuple[str, Meaning]]:
    """Yield names and meanings as a file in tables/ has them; megatron_meanings.tsv describes the columns."""
    above = [""] * 6
    for line in table_lines(f"{table}_meanings.tsv"):
        cells = line.split("\t")
        cells += [""] * (6 - len(cells))
        above = [over if cell == '"' else cell for cell, over in zip(cells, above, strict=True)]
        kind, text, names, values, how, note = above
        meaning = _meaning(kind, text, json.loads(values or "[]"), how, note)
        yield from ((name, meaning) for name in names.split())


def _meaning(kind: str, text: str, values: list[Any], how: str, note: str) -> Meaning:
    if kind == "key":
        return Mapped(text, dict(values), how, note)
    if kind in {"not supported", "other model"}:
        return NotSupported(text, tuple(values), other_model=kind == "other model")
    if kind not in get_args(Reason):
        raise KeyError(kind)
    return NotNeeded(cast("Reason", kind), text)


def table_lines(name: str) -> list[str]:
    """Return the lines of a file in tables/ without its comments."""
    text = resources.files("pretrain.tools.migrate").joinpath("tables", name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]
