"""Warns of a training that cannot fit into its devices, before its ranks start."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.engine.optimizers.choice import state_bytes
from pretrain.errors import BackendError, RecipeError
from pretrain.recipe.layout import lay_out
from pretrain.report.flops import parameter_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout


_EQUAL_DEVICES = re.compile(r"\d+ x (?P<name>[^,\n]+)")
GIB = 2**30


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A device with the memory of its datasheet."""

    name: str  # product name; "": the memory of this machine, which the ranks share
    memory: int  # bytes


def device_in(plugins: Plugins, detail: str) -> KnownDevice | None:
    """Return the device named in a backend's detail ("8 x NVIDIA H200, driver 570"); None: not known."""
    # The launcher must not open a device context, which takes memory: the datasheet's is asked for, by that name.
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
    """Return the share of this machine's memory that each of its ranks has, where the device is the CPU."""
    return KnownDevice("", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // ranks)


def _has_memory(answer: object) -> bool:
    return isinstance(getattr(answer, "memory", None), int)


def memory_notice(recipe: Recipe, overrides: Sequence[str], world_size: int, device: KnownDevice | None) -> str:
    """Return a line for the user if weights, gradients and optimizer alone exceed a device's memory; else ""."""
    if device is None:
        return ""
    try:
        least = least_memory(recipe, lay_out(recipe, world_size))
    except RecipeError:
        return ""
    if least <= device.memory:
        return ""
    needed = f"memory: weights, gradients and optimizer need at least {least / GIB:,.1f} GiB per rank"
    if not device.name:
        return f"{needed}, but this machine has {device.memory / GIB:.1f} GiB for each: the run cannot fit"
    changed = [word for override in overrides for word in ("--set", override)]
    command = ["pretrain", "plan", recipe.source, "--device", device.name, "--devices", str(world_size), *changed]
    has = f"a {device.name} has {device.memory / GIB:.0f} GiB"
    return f"{needed}, but {has}: the run cannot fit; {shlex.join(command)} shows more"


def least_memory(recipe: Recipe, layout: Layout) -> int:
    """Return bytes that the fullest rank needs at least: weights, gradients, optimizer's state."""
    # The vocabulary's rows, activations, buffers and the allocator's reserve are left out. Bytes per parameter are
    # those of the ZeRO paper (arXiv:1910.02054, section 3.1) for the dtypes in which the engines keep them; see
    # docs/zero.md.
    return int(_parameters(recipe, layout) * _bytes_per_parameter(recipe, layout.data_parallel_size))


def _parameters(recipe: Recipe, layout: Layout) -> float:
    """Return the parameters of the rank with most layers, as if tensor parallelism divided all of them."""
    count = _count(recipe, max(layout.layers_of_stages))
    if layout.pipeline_model_parallel_size > 1:
        count -= _count(recipe, 0)  # the first and the last stage alone have the rest
    return count / layout.tensor_model_parallel_size


def _count(recipe: Recipe, layers: int) -> int:
    return parameter_count(recipe.model.model_copy(update={"num_layers": layers}), 0)


def _bytes_per_parameter(recipe: Recipe, replicas: int) -> float:
    weight = 4.0 if recipe.precision.dtype == "fp32" else 2.0
    state = float(state_bytes(recipe.optimizer))
    main_weight = 0.0 if recipe.precision.dtype == "fp32" else 4.0
    if recipe.engine.name == "deepspeed":
        return _of_zero(recipe, replicas, weight, state + main_weight)
    gradient = 4.0 if recipe.precision.grad_reduce_in_fp32 else weight
    share = replicas if recipe.parallel.use_distributed_optimizer else 1
    # MixedPrecisionOptimizer makes fp32 gradients for the update; with the distributed optimizer fp32 ones serve.
    is_fp32 = recipe.precision.dtype == "fp32" or recipe.precision.grad_reduce_in_fp32
    copies = 0.0 if is_fp32 else 4.0
    return weight + gradient + (state + main_weight + copies) / share


def _of_zero(recipe: Recipe, replicas: int, weight: float, state: float) -> float:
    """Return the sum of what ZeRO leaves on the device; from stage 1 on a rank may keep its part of gradients only."""
    zero = recipe.engine.zero
    gradient = weight
    if zero.stage >= 1:
        state, gradient = state / replicas, gradient / replicas
    if zero.stage == 3:
        weight = weight / replicas
    if zero.offload_optimizer.device != "none":
        state = gradient = 0.0  # gradients are copied to the host as they are reduced
    if zero.offload_param.device != "none":
        weight = 0.0
    return weight + gradient + state
