"""Folders of checkpoints, which all dialects name alike."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings


def save(settings: Settings) -> Worked:
    """Return the folder of checkpoints; without one the source saves none."""
    given = settings.value("save")
    return Worked(False if given is None else given, ("save",), "" if given else "the source saves nothing")


def note_on_start(settings: Settings, given: Any) -> str:
    """Return a note on a folder to start from; the one that the run itself fills may be empty."""
    own = settings.value("save")
    is_own = own is not None and posixpath.normpath(str(given)) == posixpath.normpath(str(own))
    return "" if is_own else "an error if there is none; there, a fresh start"
