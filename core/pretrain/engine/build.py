"""From a recipe and loaded plugins to an engine: kernels, process groups, model, optimizer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pretrain.bridge import checkpoint as bridge_checkpoint
from pretrain.bridge import groups as bridge_groups
from pretrain.engine import groups
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.parts import Parts
from pretrain.errors import KernelError
from pretrain.model.build import build
from pretrain.model.requests import attention_requests, collectives_request, kernel_requests
from pretrain.plugins.agreement import check_same_on_all_ranks
from pretrain.plugins.negotiation import negotiate

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from pretrain.engine.protocol import Engine
    from pretrain.plugins.kernels import Kernels
    from pretrain.plugins.manager import Plugins
    from pretrain.plugins.signatures import AttentionFn
    from pretrain.recipe import Recipe


def build_engine(
    recipe: Recipe, plugins: Plugins, vocab_size: int, device: torch.device, tell: Callable[[str], None]
) -> tuple[Engine, Kernels]:
    """Build this rank's part of the engine; all ranks of the world call it together, after `groups.join_world`.

    Args:
        recipe: what is trained.
        plugins: the loaded backend, for which the bridge is installed.
        vocab_size: entries of the tokenizer, before padding.
        device: of this rank.
        tell: shows the user a line while the engine is built.

    Raises:
        KernelError: an operation has no allowed kernel, or ranks differ in their kernels.
    """
    kernels = _kernels(recipe, plugins, vocab_size)
    bridge_checkpoint.install()
    parts = Parts(
        recipe=recipe,
        backend=plugins.backend,
        kernels=kernels,
        chunks=partial(
            build,
            recipe,
            kernels,
            attention_of=partial(_attention_of, recipe, plugins, kernels),
            point_to_point=plugins.backend.point_to_point(),
            device=device,
            vocab_size=vocab_size,
        ),
        device=device,
        vocab_size=vocab_size,
        tell=tell,
    )
    return _engine(parts), kernels


def _engine(parts: Parts) -> Engine:
    if parts.recipe.engine.name == "deepspeed":
        from pretrain.engine.deepspeed.engine import DeepSpeedEngine  # noqa: PLC0415  the megatron engine runs without it

        return DeepSpeedEngine(parts)
    return MegatronEngine(parts)


def _kernels(recipe: Recipe, plugins: Plugins, vocab_size: int) -> Kernels:
    """Negotiate all kernels, those of the process groups first, and make the groups."""
    chosen, backend = recipe.kernels.chosen(), plugins.backend
    request = collectives_request(recipe, backend.device_type, backend.process_group)
    collectives = negotiate(plugins, [request], chosen, recipe.kernels.fallback)
    bridge_groups.install(collectives.collectives)
    groups.make_parallel_groups(recipe)
    requests = kernel_requests(recipe, backend.device_type, vocab_size, backend.device_name())
    kernels = negotiate(plugins, requests, chosen, recipe.kernels.fallback, earlier=collectives)
    check_same_on_all_ranks(kernels.table)
    return kernels


def _attention_of(recipe: Recipe, plugins: Plugins, kernels: Kernels, layer_number: int) -> AttentionFn:
    """Return a layer's attention kernel; layers differ only where their scores are scaled differently."""
    if not recipe.model.apply_query_key_layer_scaling:
        return kernels.attention
    requests = attention_requests(
        recipe, plugins.backend.device_type, plugins.backend.device_name(), layer_number=layer_number
    )
    chosen = {"attention": recipe.kernels.attention, "softmax": recipe.kernels.softmax}
    layer = negotiate(plugins, requests, chosen, recipe.kernels.fallback)
    first = {row.operation: row.kernel for row in kernels.table.rows}
    for row in layer.table.rows:
        if row.kernel != first[row.operation]:
            msg = (
                f"{row.operation} would be kernel '{first[row.operation]}' in layer 1 and '{row.kernel}' in layer "
                f"{layer_number}.\nName one that serves all layers: kernels.{row.operation}, or leave out "
                "model.apply_query_key_layer_scaling."
            )
            raise KernelError(msg)
    return layer.attention
