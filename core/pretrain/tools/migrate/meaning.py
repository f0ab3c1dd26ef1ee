"""Meanings that a setting of another program can have in a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Mapped:
    """A setting that becomes a key of the recipe.

    Attributes:
        key: "section.key".
        values: what its values are called here; others are taken as they are. A switch has True or False.
        how: how the key is worked out where it needs other settings too; empty if this one alone gives it.
        note: what is different here, for the user.
    """

    key: str
    values: Mapping[Any, Any] = field(default_factory=lambda: MappingProxyType({}))
    how: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A setting that something else takes the place of.

    Attributes:
        by: a sentence without its period that says by what: "TensorBoard's files are in the run directory: --run-dir".
    """

    by: str


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A setting that would change nothing here.

    Attributes:
        why: a sentence without its period that says why that is safe.
    """

    why: str


@dataclass(frozen=True, slots=True)
class NotSupported:
    """A setting that pretrain does not have.

    Attributes:
        change: a sentence without its period that says what changes for the user.
        unless: values, beside the program's own default, with which nothing changes.
        other_model: whether the model computes something else then, so that the user has to accept it.
    """

    change: str
    unless: tuple[Any, ...] = ()
    other_model: bool = False


@dataclass(frozen=True, slots=True)
class Ignored:
    """A setting that the program's own GPT training does not read, such as one of BERT's.

    Attributes:
        why: a sentence without its period.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Launched:
    """A setting that is an option of `pretrain run`, not of a recipe.

    Attributes:
        option: "--nproc".
    """

    option: str


Meaning = Mapped | Replaced | NoEffect | NotSupported | Ignored | Launched


OTHER_MODEL = "the model would compute something else: this part of it is not here"
"""What changes without a part that no sentence of its own describes."""


def other_model(change: str, unless: tuple[Any, ...] = ()) -> NotSupported:
    """Return the meaning of a setting without which the model computes something else."""
    return NotSupported(change, unless, other_model=True)


def alike(meaning: Meaning, names: str) -> dict[str, Meaning]:
    """Return a table of settings of one meaning.

    Args:
        meaning: of all of them.
        names: separated by blanks.
    """
    return dict.fromkeys(names.split(), meaning)
