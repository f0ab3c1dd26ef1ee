"""Line about a training that cannot fit into its devices, before its ranks start."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.errors import BackendError, RecipeError
from pretrain.launch.least_memory import least_memory
from pretrain.recipe.layout import lay_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe

_EQUAL_DEVICES = re.compile(r"\d+ x (?P<name>[^,\n]+)")
GIB = 2**30


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A device with the memory of its datasheet.

    Attributes:
        name: product name; empty: the memory of this machine, which the ranks share.
        memory: bytes.
    """

    name: str
    memory: int


def device_in(plugins: Plugins, detail: str) -> KnownDevice | None:
    """Return the device of which a backend says that it has some ("8 x NVIDIA H200, driver 570"); None: not known.

    The launcher must not open a device context, which the memory of the device here would need: that of the datasheet
    is asked for, by the name in `Available.detail`.

    Args:
        plugins: with the backend.
        detail: of its availability.
    """
    from pretrain.plugins.host.members import ask, named  # noqa: PLC0415  slow, as in `make_placement`

    found = _EQUAL_DEVICES.match(detail)
    if found is None:
        return None
    try:
        figures = ask(named(plugins, found["name"]), "figures", "Figures", _has_memory)
    except BackendError:
        return None
    return KnownDevice(found["name"], figures.memory)


def part_of_this_machine(ranks: int) -> KnownDevice:
    """Return what each of the ranks on this machine has of its memory, where they are processes of the CPU."""
    return KnownDevice("", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // ranks)


def _has_memory(answer: object) -> bool:
    return isinstance(getattr(answer, "memory", None), int)


def memory_notice(recipe: Recipe, overrides: Sequence[str], world_size: int, device: KnownDevice | None) -> str:
    """Return a line for the user if weights, gradients and optimizer alone exceed a device's memory; else "".

    The complete plan takes a minute and is left to `pretrain plan`.

    Args:
        recipe: what is to be trained.
        overrides: "section.key=value", as they were given.
        world_size: ranks; if they do not fit the recipe, other words say so.
        device: of every rank; None: not known.
    """
    if device is None:
        return ""
    try:
        least = least_memory(recipe, lay_out(recipe, world_size))
    except RecipeError:
        return ""
    if least <= device.memory:
        return ""
    needed = f"memory: at least {least / GIB:,.1f} GiB of weights, gradients and optimizer"
    if not device.name:
        return f"{needed} a rank, and this machine has {device.memory / GIB:.1f} GiB for each: it cannot fit"
    changed = [word for override in overrides for word in ("--set", override)]
    command = ["pretrain", "plan", recipe.source, "--device", device.name, "--devices", str(world_size), *changed]
    return (
        f"{needed} on a {device.name} of {device.memory / GIB:.0f} GiB: it cannot fit; {shlex.join(command)} shows more"
    )
