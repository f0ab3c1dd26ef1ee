"""A wrong value as an error shows it: short, however large it is."""

from __future__ import annotations

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = 60


def shown(value: object) -> str:
    """Return the value as Python writes it, cut in the middle if it is long."""
    return _SHORT.repr(value)
