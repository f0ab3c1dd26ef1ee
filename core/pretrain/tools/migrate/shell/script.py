"""Result of reading a shell script: its commands, and the files that it writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Asked, Word


@dataclass(frozen=True, slots=True)
class Command:
    """A program that the script would start, or may start where a condition is not known.

    Attributes:
        words: its name and its arguments; a word whose `asked` is not empty may be several, or none.
        environment: variables that are set for it alone, as in NAME=value before its name.
    """

    words: tuple[Word, ...]
    environment: Mapping[str, Word] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Script:
    """A script that was read.

    Attributes:
        commands: in the order in which they would start; those inside `bash -c` follow it.
        files: texts that the script writes, by path as it writes it, if they are wholly known.
        unknown_files: what is asked for of the other files that it writes; empty where nothing would tell their text.
        notices: lines for the user.
    """

    commands: tuple[Command, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    unknown_files: Mapping[str, tuple[Asked, ...]] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
