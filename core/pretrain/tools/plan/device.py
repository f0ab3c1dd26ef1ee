"""The device that is planned for, and its figures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pretrain.errors import BackendError
from pretrain.model.requests import compute_dtype
from pretrain.plugins.backend import Backend, Unavailable
from pretrain.plugins.host.discovery import installed_backends
from pretrain.plugins.host.manager import load
from pretrain.plugins.host.members import availability, device_count, named, take_device
from pretrain.tools.plan.efficiencies import ASSUMED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.plugins.backend import Figures
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.efficiencies import Reached


OPTIONS = {
    "link_bandwidth": "--link",
    "node_bandwidth": "--network",
    "devices_per_node": "--devices-per-node",
}
"""Options that give a figure."""
NODE = 8
"""Devices of a node where neither the user nor the backend says how many, as in most servers for training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The device that a user asks for; a figure that he gives is taken in place of the backend's.

    Attributes:
        backend: value of `--backend`; None: the one that knows the name, cpu without a name.
        name: product name of a device that need not be there; None: the device here.
        memory: bytes.
        link_bandwidth: bytes/s that a device sends inside its node.
        node_bandwidth: bytes/s that a device sends to other nodes.
        devices_per_node: their number.
    """

    backend: str | None = None
    name: str | None = None
    memory: int | None = None
    link_bandwidth: float | None = None
    node_bandwidth: float | None = None
    devices_per_node: int | None = None

    def figures(self) -> dict[str, Any]:
        """Return those of `Figures` that are given, memory aside."""
        return {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanDevice:
    """A device, with figures as far as they are known.

    Attributes:
        backend_name: value of `--backend`.
        name: product name.
        memory: bytes of its memory, or what the user says.
        peak_flops: dense FLOP/s of matmuls in the recipe's dtype.
        figures: of the datasheet, or of the user; devices of a node are always known, or assumed.
        sources: of the figures that are not the backend's: their option, or "assumed".
        reached: shares of the figures that a training reaches.
        is_named: the backend answers for this name whether or not the device is there.
        is_shared: the memory is a part of one that ranks share: more ranks have no more of it.
    """

    backend_name: str
    name: str
    memory: int | None
    peak_flops: float | None
    figures: Figures
    sources: Mapping[str, str] = field(default_factory=dict)
    reached: Reached = ASSUMED
    is_named: bool = True
    is_shared: bool = False

    def group_bytes(self, layout: Layout) -> int:
        """Return the bytes that context and process groups take, as the backend assumes: `Figures`."""
        sizes = (
            layout.tensor_model_parallel_size,
            layout.pipeline_model_parallel_size,
            layout.data_parallel_size,
        )
        groups = sum(size > 1 for size in sizes)
        return (self.figures.context_memory or 0) + groups * (self.figures.group_memory or 0)


def find_device(recipe: Recipe, wanted: Wanted, *, ranks: int = 1) -> PlanDevice:
    """Return the device of a name, or the one here, with its figures.

    Args:
        recipe: whose dtype decides on the peak.
        wanted: by the user.
        ranks: that share the memory, where processes are not bound to devices: each has its part.

    Raises:
        BackendError: no backend knows the device, or its name is short for several; or the one here is to be planned
            for, and is not available.
    """
    if wanted.name is not None:
        plugins = named(load(wanted.backend), wanted.name) if wanted.backend else _knowing(wanted.name)
        name = wanted.name
    else:
        plugins = load(wanted.backend or "cpu")
        answer = availability(plugins)
        if isinstance(answer, Unavailable):
            msg = (
                f"{plugins.label}: {answer.reason}\n"
                "Name the device to plan for, which need not be here: --device with its product name."
            )
            raise BackendError(msg)
        take_device(plugins, 0)
        name = plugins.backend.device_name()
    figures, given = plugins.backend.figures(), wanted.figures()
    sources = {name: OPTIONS[name] for name in given}
    if figures.devices_per_node is None and "devices_per_node" not in given:
        given["devices_per_node"], sources["devices_per_node"] = NODE, "assumed"
    total = wanted.memory or figures.memory or (plugins.backend.memory().total if wanted.name is None else None)
    is_shared = wanted.name is None and device_count(plugins) is None
    if total is not None and is_shared:
        total //= ranks
    return PlanDevice(
        backend_name=plugins.backend.name,
        name=name,
        is_named=wanted.name is not None or _is_known(plugins, name),
        is_shared=is_shared,
        memory=total,
        peak_flops=plugins.backend.peak_flops(compute_dtype(recipe)),
        figures=replace(figures, **given),
        sources=sources,
    )


def _is_known(plugins: Plugins, device_name: str) -> bool:
    try:
        named(plugins, device_name)
    except BackendError:
        return False
    return True


def _knowing(device_name: str) -> Plugins:
    """Return the plugins of the first installed backend that knows a device of the name."""
    reasons = []
    for backend in installed_backends():
        plugins = load(backend.name)
        if type(plugins.backend).named is Backend.named:
            continue  # it knows none by name
        try:
            return named(plugins, device_name)
        except BackendError as error:
            _, _, known = str(error).partition("\n")
            reasons.append(f"{backend.name}: {known}")
    msg = "\n".join([f"no installed backend knows a device '{device_name}'.", *reasons])
    raise BackendError(msg)
