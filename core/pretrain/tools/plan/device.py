"""The device to plan for, its figures, and the shares of them that trainings reach."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.errors import BackendError
from pretrain.model.requests import DTYPES, compute_dtype
from pretrain.plugins.backend import Backend, Unavailable
from pretrain.plugins.host.discovery import installed_backends
from pretrain.plugins.host.manager import load
from pretrain.plugins.host.members import availability, device_count, named, take_device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.plugins.backend import Figures
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Shares of a device's figures, 0 to 1."""

    matmul: float  # of the peak in FLOP/s, in matmuls and attention
    memory: float
    links: float

    def times(self, factor: float) -> Efficiencies:
        """Return the shares times a factor."""
        return Efficiencies(self.matmul * factor, self.memory * factor, self.links * factor)


@dataclass(frozen=True, slots=True)
class ReachedShares:
    """Range of the shares that a training reaches."""

    best: Efficiencies
    worst: Efficiencies
    measured_in: str = ""  # text about the run that reached them; "" if they are assumed


WORST = Efficiencies(matmul=0.55, memory=0.6, links=0.6)
"""Low end: what published trainings exceed; see tests/tools/plan/published."""
BEST = Efficiencies(matmul=0.8, memory=0.9, links=0.9)
"""High end: about what large matmuls, memory and rings of A100 and H100 reach of their datasheets."""
ASSUMED = ReachedShares(BEST, WORST)
MIDDLE = Efficiencies(*((getattr(WORST, name) + getattr(BEST, name)) / 2 for name in ("matmul", "memory", "links")))
"""A measured run's shares are a multiple of these."""
OPTIONS = {"link_bandwidth": "--link", "node_bandwidth": "--network", "devices_per_node": "--devices-per-node"}
NODE = 8  # devices of a node if neither the user nor the backend says how many


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceOptions:
    """The device and figures that the user gives; a figure replaces the backend's."""

    backend: str | None = None  # value of `--backend`; None: the one that knows the name, cpu without a name
    name: str | None = None  # product name of a device that need not be there; None: the device here
    memory: int | None = None  # bytes
    link_bandwidth: float | None = None  # bytes/s that a device sends inside its node
    node_bandwidth: float | None = None  # bytes/s that a device sends to other nodes
    devices_per_node: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanDevice:
    """A device with its known figures."""

    backend_name: str
    name: str
    memory: int | None  # bytes of its memory, or what the user says
    peak_flops: float | None  # dense FLOP/s of matmuls in the recipe's dtype
    figures: Figures  # of the datasheet, or of the user; devices of a node are always known, or assumed
    sources: Mapping[str, str] = field(default_factory=dict)  # of other figures than the backend's: option or "assumed"
    peak_flops_fp32: float | None = None  # as `peak_flops`, in fp32; None: not known, and counted as that
    peak_flops_fp8: float | None = None  # as `peak_flops`, in fp8; None: not known, and counted as that
    reached: ReachedShares = ASSUMED  # shares of the figures that a training reaches
    is_named: bool = True  # the backend answers for this name whether or not the device is there
    is_shared: bool = False  # the memory is a part of one that ranks share: more ranks have no more of it

    def group_bytes(self, layout: Layout) -> int:
        """Return the bytes that context and process groups take, as the backend assumes: `Figures`."""
        tensor, pipeline = layout.tensor_model_parallel_size, layout.pipeline_model_parallel_size
        sizes = [tensor, pipeline, layout.context_parallel_size, layout.replicas]
        if (experts := layout.expert_model_parallel_size) is not None:
            sizes.append(layout.ranks_of_experts)
            # Where every rank has a part of every expert, gradients are summed with all others.
            is_split_as_layers = (experts, layout.expert_tensor_parallel_size) == (1, tensor)
            sizes.append(1 if is_split_as_layers else layout.expert_data_parallel_size)
        groups = sum(size > 1 for size in sizes)
        return (self.figures.context_memory or 0) + groups * (self.figures.group_memory or 0)


def find_device(recipe: Recipe, wanted: DeviceOptions, *, ranks: int = 1) -> PlanDevice:
    """Return the named device, or the one of this machine, with its figures; `ranks` share the memory of a host."""
    if wanted.name is not None:
        plugins = named(load(wanted.backend), wanted.name) if wanted.backend else _knowing(wanted.name)
        name = wanted.name
    else:
        plugins = load(wanted.backend or "cpu")
        answer = availability(plugins)
        if isinstance(answer, Unavailable):
            msg = (
                f"{plugins.label}: {answer.reason}\n"
                "Name the device to plan for by its product name (--device); this machine need not have it."
            )
            raise BackendError(msg)
        take_device(plugins, 0)
        name = plugins.backend.device_name()
    figures = plugins.backend.figures()
    given: dict[str, Any] = {each: value for each in OPTIONS if (value := getattr(wanted, each)) is not None}
    sources = {each: OPTIONS[each] for each in given}
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
        peak_flops_fp32=plugins.backend.peak_flops(DTYPES["fp32"]),
        peak_flops_fp8=plugins.backend.peak_flops(torch.float8_e4m3fn),
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
