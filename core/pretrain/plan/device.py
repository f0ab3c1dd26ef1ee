"""The device that is planned for, and its figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.errors import BackendError
from pretrain.model.requests import compute_dtype
from pretrain.plugins.backend import Backend, Unavailable
from pretrain.plugins.host.discovery import installed_backends
from pretrain.plugins.host.manager import load
from pretrain.plugins.host.members import device_count, named, take_device
from pretrain.plugins.host.readiness import availability

if TYPE_CHECKING:
    from pretrain.plugins.backend import Figures
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanDevice:
    """A device, with figures as far as they are known.

    Attributes:
        backend_name: value of `--backend`.
        name: product name.
        memory: bytes of its memory, or what the user says.
        peak_flops: dense FLOP/s of matmuls in the recipe's dtype.
        figures: of the datasheet.
        is_named: the backend answers for this name whether or not the device is there.
        is_shared: the memory is a part of one that ranks share: more ranks have no more of it.
    """

    backend_name: str
    name: str
    memory: int | None
    peak_flops: float | None
    figures: Figures
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


def find_device(
    recipe: Recipe, backend: str | None, device_name: str | None, memory: int | None, *, ranks: int = 1
) -> PlanDevice:
    """Return the device of a name, or the one here, with its figures.

    Args:
        recipe: whose dtype decides on the peak.
        backend: value of `--backend`; None: the one that knows the name, cpu without a name.
        device_name: None: the device here.
        memory: bytes, in place of the datasheet's.
        ranks: that share the memory, where processes are not bound to devices: each has its part.

    Raises:
        BackendError: no backend knows the device; or the one here is to be planned for, and is not available.
    """
    if device_name is not None:
        plugins = named(load(backend), device_name) if backend else _knowing(device_name)
        name = device_name
    else:
        plugins = load(backend or "cpu")
        answer = availability(plugins)
        if isinstance(answer, Unavailable):
            msg = (
                f"{plugins.label}: {answer.reason}\n"
                "Name the device to plan for, which need not be here: --device with its product name."
            )
            raise BackendError(msg)
        take_device(plugins, 0)
        name = plugins.backend.device_name()
    figures = plugins.backend.figures()
    total = memory or figures.memory or (plugins.backend.memory().total if device_name is None else None)
    is_shared = device_name is None and device_count(plugins) is None
    if total is not None and is_shared:
        total //= ranks
    return PlanDevice(
        backend_name=plugins.backend.name,
        name=name,
        is_named=device_name is not None or _is_known(plugins, name),
        is_shared=is_shared,
        memory=total,
        peak_flops=plugins.backend.peak_flops(compute_dtype(recipe)),
        figures=figures,
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
