"""Construction of an engine: process groups, random generators, kernels, model, optimizer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pretrain.bridge.megatron import checkpoint as bridge_checkpoint
from pretrain.engine import groups
from pretrain.engine.kernels import Negotiation
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.protocol import EngineParts
from pretrain.model.build import build

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from pretrain.engine.protocol import Engine
    from pretrain.plugins.backend import Backend
    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.kernels import Kernels, WrapKernel
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
    """Build this rank's part of the engine; all ranks call it together, in the world of `groups.joined`.

    `planned` is a device of fake tensors: kernels are then the stand-ins that the plugins offer for their own device
    (`Offer.fake`), and weights have no values. `vocab_size` is the tokenizer's, before padding.
    """
    parts = engine_parts(recipe, plugins, vocab_size, device, notify, planned=planned, wrap_kernel=wrap_kernel)
    if recipe.engine.name == "deepspeed":
        from pretrain.engine.deepspeed.engine import DeepSpeedEngine  # noqa: PLC0415  the megatron engine runs without it

        return DeepSpeedEngine(parts), parts.kernels
    return MegatronEngine(parts), parts.kernels


def engine_parts(
    recipe: Recipe,
    plugins: Plugins,
    vocab_size: int,
    device: torch.device,
    notify: Callable[[str], None],
    *,
    planned: Backend | None = None,
    wrap_kernel: WrapKernel | None = None,
) -> EngineParts:
    """Choose the kernels, and return what an engine is built from: also `ForwardOnlyEngine`, without an optimizer."""
    is_planned, backend = planned is not None, planned or plugins.backend
    negotiation = Negotiation(recipe, plugins, is_planned=is_planned, wrap_kernel=wrap_kernel)
    collectives = negotiation.collectives()
    # A planned world's groups have no options, and none is for tensors on the host.
    options = (lambda _group_name: None) if is_planned else collectives.collectives
    groups.make_parallel_groups(recipe, options)
    groups.seed(recipe.train.seed)
    kernels = negotiation.kernels(vocab_size, collectives)
    bridge_checkpoint.install(pinned_memory=backend.pinned_memory())
    return EngineParts(
        recipe=recipe,
        backend=backend,
        kernels=kernels,
        chunks=partial(
            build,
            recipe,
            kernels,
            attention_of=partial(negotiation.attention_of_layer, kernels),
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
