"""The text of a source file, if it is one that a person or a training wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pretrain.errors import MigrateError, did_you_mean
from pretrain.recipe.section import local_path

_MOST = 16 * 2**20
"""Bytes that are read: a log has its arguments at its beginning, and everything else is far smaller."""

_LARGEST = 4_000_000
"""Characters of a script or a file of settings."""


@dataclass(frozen=True, slots=True)
class Text:
    """The beginning of a file.

    Attributes:
        text: without a byte order mark.
        whole: whether that is all of it.
    """

    text: str
    whole: bool

    @property
    def is_large(self) -> bool:
        """Say whether it is more than a script or a file of settings has."""
        return not self.whole or len(self.text) > _LARGEST


def read_text(name: str) -> Text:
    """Read a file.

    Args:
        name: its path.

    Raises:
        MigrateError: it is an address, missing, a folder, or not text.
    """
    try:
        local_path(name)
    except ValueError as error:
        raise MigrateError(str(error)) from error
    path = Path(name)
    if path.is_dir():
        msg = f"{name}: this is a folder.\nGive the launch script, or the file of settings, that is in it."
        raise MigrateError(msg)
    try:
        with path.open("rb") as file:
            data = file.read(_MOST + 1)
    except FileNotFoundError as error:
        near = did_you_mean(path.name, _names_beside(path))
        msg = f"{name}: there is no such file.{near}\nGive a launch script, a log, or a file of settings."
        raise MigrateError(msg) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        msg = f"{name}: this file cannot be read: {getattr(error, 'strerror', None) or error}."
        raise MigrateError(msg) from error
    return _decoded(name, data)


def _names_beside(path: Path) -> list[str]:
    return [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []


def _decoded(name: str, data: bytes) -> Text:
    whole = len(data) <= _MOST
    if b"\0" in data[:_MOST]:
        msg = f"{name}: this is not a text.\nGive a launch script, a log, or a file of settings."
        raise MigrateError(msg)
    try:
        # A character that the limit cuts in two must not make the text unreadable.
        return Text(data[:_MOST].decode("utf-8-sig", errors="strict" if whole else "ignore"), whole)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        msg = f"{name}:{line}: this is not UTF-8 text.\nSave the file as UTF-8."
        raise MigrateError(msg) from error
