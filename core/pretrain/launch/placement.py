"""Placement of a run: all checks before anything is started or written."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.engine.optimizers.choice import state_bytes
from pretrain.errors import BackendError, DataError, RecipeError
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.start_checks import built_inputs
from pretrain.plugins.host.discovery import find_backend
from pretrain.recipe import load_recipe
from pretrain.recipe.layout import lay_out, layers_with_experts
from pretrain.recipe.load import to_yaml
from pretrain.report.flops import active_text, expert_parameter_count, flops_per_sequence, parameter_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pretrain.distributions import Installed
    from pretrain.launch.nodes.nodes import Hosts
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout

_EQUAL_DEVICES = re.compile(r"\d+ x (?P<name>[^,\n]+)")
GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Placement of a run: recipe, device and number of ranks."""

    recipe: Recipe  # fits the number of ranks where that is known
    backend: Installed  # its device is there, unless the ranks are those of a hostfile
    nodes: Nodes
    nproc: int  # ranks of this node
    world_size: int  # ranks of all nodes, taken as equal where each starts its own
    needs_own_machine: bool = False  # a second node of the hostfile on this machine would take its devices
    forks: bool = False  # ranks may be forked from a process that has imported what they need
    hosts: Hosts | None = None  # of a hostfile; then `nodes` and `nproc` do not matter
    absent: str = ""  # reason that the device cannot be used here, in a --dry-run
    notice: str = ""  # about the number of ranks, if it is not the expected one
    memory_notice: str = ""  # if a training cannot fit into the devices


def make_placement(
    path: Path,
    overrides: tuple[str, ...],
    backend_name: str,
    *,
    nodes: Nodes,
    nproc: int | None,
    world: World | None,
    needs_device: bool = True,
) -> Placement:
    """Check recipe, backend, device and layout, the cheapest first."""
    # Without `nproc` a node has a rank for each device, or for as many as the recipe's batch and model-parallel size
    # fit; tensor x pipeline x context ranks where processes are not bound to devices.
    from pretrain.plugins.host.members import device_count  # noqa: PLC0415  slow, as `_device`

    recipe = load_recipe(path, overrides)
    if nproc and nodes.count == 1:
        lay_out(recipe, nproc)
    backend = find_backend(backend_name)
    plugins, absent, detail = _device(backend, needs_device=needs_device)
    notice = memory = ""
    if world is not None:
        nproc, world_size = world.local_world_size, world.world_size
    else:
        if nproc is None:
            nproc, notice = _default_nproc(recipe, device_count(plugins), nodes.count)
        world_size = nproc * nodes.count
        if not absent:
            device = part_of_this_machine(nproc) if device_count(plugins) is None else device_in(plugins, detail)
            memory = memory_notice(recipe, overrides, world_size, device)
    if world is not None or nodes.count == 1:
        lay_out(recipe, world_size)
    return Placement(
        recipe=recipe,
        backend=backend,
        nodes=nodes,
        nproc=nproc,
        world_size=world_size,
        forks=plugins.backend.forkable,
        needs_own_machine=nodes.of_hostfile and device_count(plugins) is not None,
        absent=absent,
        notice=notice,
        memory_notice=memory,
    )


def _default_nproc(recipe: Recipe, devices: int | None, nodes: int) -> tuple[int, str]:
    """Return the largest number of ranks per node that fits the recipe, with equal nodes, and a notice about it."""
    if not devices:
        return -(-recipe.least_ranks // nodes), ""
    fitting = next((nproc for nproc in range(devices, 0, -1) if _fits(recipe, nproc * nodes)), devices)
    if fitting == devices:
        return devices, ""
    notice = (
        f"{fitting} of {devices} devices are used: global_batch_size {recipe.train.global_batch_size} with a "
        f"model-parallel size of {recipe.model_parallel_size} cannot be divided over more "
        "(set train.global_batch_size or --nproc)"
    )
    return fitting, notice


def _fits(recipe: Recipe, world_size: int) -> bool:
    try:
        lay_out(recipe, world_size)
    except RecipeError:
        return False
    return True


def make_hosted_placement(path: Path, overrides: tuple[str, ...], backend_name: str, hosts: Hosts) -> Placement:
    """Check recipe, backend and layout for the ranks of a hostfile, to which the device is left."""
    recipe = load_recipe(path, overrides)
    try:
        lay_out(recipe, hosts.slots)
    except RecipeError as error:
        msg = f"{hosts.file}: {hosts.slots} slots ({hosts}), a rank for each.\n{error}"
        raise RecipeError(msg) from error
    backend = find_backend(backend_name)
    return Placement(recipe=recipe, backend=backend, nodes=Nodes(), nproc=0, world_size=hosts.slots, hosts=hosts)


def _device(backend: Installed, *, needs_device: bool) -> tuple[Plugins, str, str]:
    """Import the backend, which is slow; return its plugins, why it has no device, and the detail of those it has."""
    from pretrain.plugins.host.manager import load_alone  # noqa: PLC0415
    from pretrain.plugins.host.members import require_device  # noqa: PLC0415

    plugins = load_alone(backend)
    try:
        answer = require_device(plugins)
    except BackendError as error:
        if needs_device:
            raise
        return plugins, str(error).splitlines()[0], ""
    return plugins, "", answer.detail


def describe(placement: Placement) -> str:
    """Return the complete recipe as YAML, with layout, size and notices as comments at its end."""
    recipe, layout = placement.recipe, lay_out(placement.recipe, placement.world_size)
    batch = recipe.train.global_batch_size
    lines = [
        placement.absent or placement.backend.label,
        f"hosts: {placement.hosts}; started by pdsh" if placement.hosts else "",
        f"ranks: {layout.world_size} = {layout.sizes}",
        f"layers of each stage: {layout.stages}" if layout.pipeline_model_parallel_size > 1 else "",
        (
            f"batch: {batch} samples = micro batch {layout.micro_batch_size} x data {layout.data_parallel_size} x "
            f"{layout.num_microbatches(batch)} micro batches a step"
        ),
        *_size(recipe),
        *(placement.notice, placement.memory_notice, built_inputs(recipe), *recipe.notices),
    ]
    return "\n".join([to_yaml(recipe).rstrip(), "", *(f"# {line}" for line in lines if line)])


def _size(recipe: Recipe) -> list[str]:
    """Return parameters and FLOPs, if the tokenizer that they depend on exists already."""
    from pretrain.data.tokenizers import load_tokenizer  # noqa: PLC0415  only here

    try:
        vocab_size = recipe.padded_vocab_size(load_tokenizer(recipe.tokenizer).vocab_size)
    except DataError as error:
        why = str(error).splitlines()[0]
        parameters = f"{parameter_count(recipe.model, 0):,}{active_text(recipe.model, 0)}"
        return [f"parameters without the vocabulary's: {parameters}; the vocabulary is unknown: {why}"]
    tokens = recipe.train.global_batch_size * recipe.model.seq_length
    flops = flops_per_sequence(recipe.model, vocab_size) * recipe.train.global_batch_size
    parameters = f"{parameter_count(recipe.model, vocab_size):,}{active_text(recipe.model, vocab_size)}"
    return [
        f"parameters: {parameters}, vocabulary padded to {vocab_size}",
        f"step: {tokens:,} tokens, {flops / 1e12:.4g} model TFLOP",
    ]


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
    each = _bytes_per_parameter(recipe, layout.replicas) / layout.tensor_model_parallel_size
    of_expert = _bytes_per_parameter(recipe, layout.expert_data_parallel_size) / layout.ranks_of_experts
    stages = zip(layout.layers_of_stages, layers_with_experts(recipe, layout), strict=True)
    counts = [_counts(recipe, *stage) for stage in stages]
    # The first and the last of several stages alone have the rest.
    rest = _counts(recipe, 0, 0)[0] if len(counts) > 1 else 0
    return int(max((count - rest) * each + experts * of_expert for count, experts in counts))


def _counts(recipe: Recipe, layers: int, with_experts: int) -> tuple[int, int]:
    """Return the parameters of layers, as if tensor parallelism divided all of them, and those of their experts."""
    shape = {"num_layers": layers, "first_k_dense_replace": layers - with_experts, "moe_layer_freq": 1}
    model = recipe.model.model_copy(update=shape)
    experts = expert_parameter_count(model)
    return parameter_count(model, 0) - experts, experts


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
