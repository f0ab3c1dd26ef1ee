"""Short text of a value for error messages."""

from __future__ import annotations

import reprlib

_MOST_BITS = 256


class _Short(reprlib.Repr):
    """Python's short texts, also of what would be written in full there: numbers of any length, ordered dicts."""

    repr_OrderedDict = reprlib.Repr.repr_dict  # noqa: N815  looked up by the type's name

    def repr_int(self, x: int, level: int) -> str:
        """Return the digits, or how many bits there are: Python refuses to write numbers of 4300 digits."""
        bits = x.bit_length()
        return super().repr_int(x, level) if bits <= _MOST_BITS else f"a number of {bits} bits"


_SHORT = _Short()
_SHORT.maxlevel = 2
_SHORT.maxstring = 60


def shown(value: object) -> str:
    """Return the value as Python writes it, cut in the middle if it is long."""
    return _SHORT.repr(value)


def as_written(value: object) -> str:
    """Return the value as YAML writes it, with the other words that YAML reads as true or false."""
    match value:
        case True:
            return "true (as YAML reads yes and on)"
        case False:
            return "false (as YAML reads no and off)"
        case _:
            return shown(value)
