"""Words of Megatron-LM's flags, spelled and written as its parser has them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pretrain.tools.migrate.programs.known import program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.tools.migrate.programs.program import Flag
    from pretrain.tools.migrate.to_megatron.answer import Words

TARGET = "megatron-lm-2026.08"
"""The version whose arguments are written."""


@functools.cache
def flags_by_name() -> Mapping[str, Sequence[Flag]]:
    """Return the flags of the version by dest; several where one switch is on and another off."""
    found: dict[str, list[Flag]] = {}
    for spelling, flag in program(TARGET).spelled.items():
        if spelling == flag.spellings[0]:
            found.setdefault(flag.name, []).append(flag)
    return found


def given(name: str, *values: Any) -> Words:
    """Return the words that give a flag its value.

    Args:
        name: dest of the flag.
        values: one or several; True by default. A switch has one, True or False.

    Raises:
        ValueError: the flag cannot have that value.
    """
    flags = flags_by_name()[name]
    if flags[0].kind == "switch":
        wanted = values[0] if values else True
        return (_spelling(next(flag for flag in flags if flag.given == wanted)),)
    texts = [_text(flags[0], value) for value in values]
    spelling = _spelling(flags[0])
    if len(texts) == 1 and texts[0].startswith("-"):  # argparse would take it for a flag
        return (f"{spelling}={texts[0]}",)
    return (spelling, *texts)


def _spelling(flag: Flag) -> str:
    """Return how a flag is written; one without underscores if there is one."""
    return min(flag.spellings, key=lambda spelling: "_" in spelling)


def _text(flag: Flag, value: Any) -> str:
    if flag.kind == "int":
        if value != int(value):
            msg = f"{_spelling(flag)} takes whole numbers."
            raise ValueError(msg)
        return str(int(value))
    return repr(float(value)) if flag.kind == "float" else str(value)
