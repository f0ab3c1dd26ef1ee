"""Wishes of the user beside the sources."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wishes:
    """Choices that the sources leave to the user.

    Attributes:
        program: --from: a version or a family; empty for the newest version that has all flags.
        devices: of the whole training; None to take the launcher's.
        as_meant: whether a DeepSpeed file counts that the program itself would not read.
        overrides: "section.key=value" of the recipe.
    """

    program: str = ""
    devices: int | None = None
    as_meant: bool = False
    overrides: tuple[str, ...] = ()
