"""Construction of an engine: process groups, random generators, kernels, model, optimizer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pretrain.bridge.megatron import checkpoint as bridge_checkpoint
from pretrain.engine import groups
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.megatron.forward_only import ForwardOnlyEngine
from pretrain.engine.negotiation import attention_of_layer, negotiate_collectives, negotiate_kernels
from pretrain.engine.parts import Parts
from pretrain.model.build import build

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from pretrain.engine.protocol import Engine, ForwardEngine
    from pretrain.plugins.backend import Backend
    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.building import WrapKernel
    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.recipe import Recipe


def build_engine(
    recipe: Recipe,
    plugins: Plugins,
    vocab_size: int,
    device: torch.device,
    notify: Callable[[str], None],
    *,
    planned: Backend | None = None,
    wrap_kernel: WrapKernel | None = None,
) -> tuple[Engine, Kernels]:
    """Build this rank's part of the engine; all ranks of the world call it together, in the world of `groups.joined`.

    Args:
        recipe: what is trained.
        plugins: the loaded backend, for which the bridge is installed.
        vocab_size: entries of the tokenizer, before padding.
        device: of this rank.
        notify: shows the user a line while the engine is built.
        planned: a device of fake tensors, of which `device` is one: then kernels are the stand-ins of those that the
            plugins offer for their device (`Offer.fake`), and weights have no values.
        wrap_kernel: see `pretrain.plugins.negotiation.building.negotiate`.

    Raises:
        KernelError: an operation has no allowed kernel, or ranks differ in their kernels.
    """
    parts = _parts(recipe, plugins, vocab_size, device, notify, planned=planned, wrap_kernel=wrap_kernel)
    return _engine(parts), parts.kernels


def build_forward_engine(
    recipe: Recipe,
    plugins: Plugins,
    vocab_size: int,
    device: torch.device,
    notify: Callable[[str], None],
    *,
    wrap_kernel: WrapKernel | None = None,
) -> tuple[ForwardEngine, Kernels]:
    """Build this rank's part of the model without an optimizer; arguments, kernels and errors as `build_engine`."""
    parts = _parts(recipe, plugins, vocab_size, device, notify, wrap_kernel=wrap_kernel)
    return ForwardOnlyEngine(parts), parts.kernels


def _parts(
    recipe: Recipe,
    plugins: Plugins,
    vocab_size: int,
    device: torch.device,
    notify: Callable[[str], None],
    *,
    planned: Backend | None = None,
    wrap_kernel: WrapKernel | None = None,
) -> Parts:
    """Make the process groups, seed the generators and choose the kernels."""
    is_planned = planned is not None
    collectives = negotiate_collectives(recipe, plugins, planned=is_planned)
    if is_planned:
        groups.make_planned_groups(recipe)
    else:
        groups.make_parallel_groups(recipe, collectives.collectives)
    groups.seed(recipe.train.seed)
    kernels = negotiate_kernels(recipe, plugins, vocab_size, collectives, planned=is_planned, wrap_kernel=wrap_kernel)
    bridge_checkpoint.install(pinned_memory=(planned or plugins.backend).pinned_memory())
    return Parts(
        recipe=recipe,
        backend=planned or plugins.backend,
        kernels=kernels,
        chunks=partial(
            build,
            recipe,
            kernels,
            attention_of=partial(
                attention_of_layer, recipe, plugins, kernels, planned=is_planned, wrap_kernel=wrap_kernel
            ),
            point_to_point=plugins.backend.point_to_point(),
            device=device,
            vocab_size=vocab_size,
            planned=is_planned,
        ),
        device=device,
        vocab_size=vocab_size,
        notify=notify,
        planned=is_planned,
    )


def _engine(parts: Parts) -> Engine:
    if parts.recipe.engine.name == "deepspeed":
        from pretrain.engine.deepspeed.engine import DeepSpeedEngine  # noqa: PLC0415  the megatron engine runs without it

        return DeepSpeedEngine(parts)
    return MegatronEngine(parts)
