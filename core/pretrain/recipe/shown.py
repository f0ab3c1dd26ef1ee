"""Short text of a value for error messages."""

from __future__ import annotations

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = 60


def shown(value: object) -> str:
    """Return the value as Python writes it, cut in the middle if it is long."""
    return _SHORT.repr(value)
