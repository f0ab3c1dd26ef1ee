"""Sizes of memory on the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]*)", re.IGNORECASE)
_UNITS: Mapping[str, int] = {
    "": 1,
    "b": 1,
    **dict.fromkeys(("m", "mb", "mib"), 2**20),
    **dict.fromkeys(("g", "gb", "gib"), 2**30),
    **dict.fromkeys(("t", "tb", "tib"), 2**40),
}
LEAST = 2**20
"""Bytes below which a size without a unit was meant in GB."""


class MemorySize(click.ParamType[int]):
    """Memory of a device in bytes, from "40GB", "40GiB", "32768MB" or bytes.

    GB are read as GiB: makers name their cards so. An A100 with "80 GB" has 81920 MiB by nvidia-smi, an Ascend 910B3
    with "64 GB" 65536 by npu-smi.
    """

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(value.strip())
        unit = found and _UNITS.get(found["unit"].lower())
        if not found or not unit:
            self.fail(f"'{value}' is no size of memory. Allowed: 40GB, 40GiB, 32768MB, or bytes.", param, ctx)
        size = int(float(found["number"]) * unit)
        if size < LEAST:
            hint = (
                "Allowed: 40GB, 40GiB, 32768MB, or bytes." if found["unit"] or not size else f"Did you mean {value}GB?"
            )
            self.fail(f"'{value}' is {size} bytes, less than any device has. {hint}", param, ctx)
        return size
