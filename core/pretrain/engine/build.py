"""Construction of an engine: process groups, random generators, kernels, model, optimizer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pretrain.bridge.megatron import checkpoint as bridge_checkpoint
from pretrain.engine import groups
from pretrain.engine.megatron.engine import MegatronEngine
from pretrain.engine.megatron.forward_pass import ForwardOnlyEngine
from pretrain.engine.protocol import EngineParts
from pretrain.errors import KernelError
from pretrain.model.build import build
from pretrain.model.requests import attention_requests, collectives_request, kernel_requests, norm_request
from pretrain.plugins.negotiation.building import negotiate
from pretrain.plugins.negotiation.kernel_table import check_same_on_all_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from pretrain.engine.protocol import Engine, ForwardEngine
    from pretrain.plugins.backend import Backend
    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.building import WrapKernel
    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.plugins.requests import Request
    from pretrain.plugins.signatures import AttentionFn, NormFn
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
) -> EngineParts:
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
    return EngineParts(
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
            norm_of=partial(norm_of_width, recipe, plugins, kernels, planned=is_planned, wrap_kernel=wrap_kernel),
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


def _engine(parts: EngineParts) -> Engine:
    if parts.recipe.engine.name == "deepspeed":
        from pretrain.engine.deepspeed.engine import DeepSpeedEngine  # noqa: PLC0415  the megatron engine runs without it

        return DeepSpeedEngine(parts)
    return MegatronEngine(parts)


def negotiate_collectives(recipe: Recipe, plugins: Plugins, *, planned: bool = False) -> Kernels:
    """Choose the options of the process groups, which are needed before the groups are made."""
    backend = plugins.backend
    request = collectives_request(recipe, backend.device_type, backend.process_group)
    return negotiate(plugins, [request], recipe.kernels.chosen(), recipe.kernels.fallback, planned=planned)


def negotiate_kernels(
    recipe: Recipe,
    plugins: Plugins,
    vocab_size: int,
    collectives: Kernels,
    *,
    planned: bool = False,
    wrap_kernel: WrapKernel | None = None,
) -> Kernels:
    """Choose all other kernels, and compare them over all ranks, which call it together.

    Raises:
        KernelError: an operation has no allowed kernel, or ranks differ in their kernels.
    """
    backend = plugins.backend
    requests = kernel_requests(recipe, backend.device_type, vocab_size, backend.device_name())
    chosen = recipe.kernels.chosen()
    kernels = negotiate(
        plugins,
        requests,
        chosen,
        recipe.kernels.fallback,
        earlier=collectives,
        planned=planned,
        wrap_kernel=wrap_kernel,
    )
    check_same_on_all_ranks(kernels.table)
    return kernels


def attention_of_layer(
    recipe: Recipe,
    plugins: Plugins,
    kernels: Kernels,
    layer_number: int,
    *,
    planned: bool = False,
    wrap_kernel: WrapKernel | None = None,
) -> AttentionFn:
    """Return a layer's attention kernel; layers differ only where their scores are scaled differently."""
    if not recipe.model.apply_query_key_layer_scaling:
        return kernels.attention
    requests = attention_requests(
        recipe, plugins.backend.device_type, plugins.backend.device_name(), layer_number=layer_number
    )
    where = f"layer {layer_number}", "layers, or leave out model.apply_query_key_layer_scaling"
    return _more(recipe, plugins, kernels, requests, *where, planned=planned, wrap_kernel=wrap_kernel).attention


def norm_of_width(
    recipe: Recipe,
    plugins: Plugins,
    kernels: Kernels,
    width: int,
    *,
    planned: bool = False,
    wrap_kernel: WrapKernel | None = None,
) -> NormFn:
    """Return the norm kernel of a width, which is asked for by itself where it is not the hidden size."""
    if width == recipe.model.hidden_size:
        return kernels.norm
    requests = [norm_request(recipe, plugins.backend.device_type, plugins.backend.device_name(), width=width)]
    more = _more(
        recipe, plugins, kernels, requests, f"width {width}", "widths", planned=planned, wrap_kernel=wrap_kernel
    )
    return more.norm


def _more(
    recipe: Recipe,
    plugins: Plugins,
    kernels: Kernels,
    requests: Sequence[Request],
    where: str,
    all_of: str,
    *,
    planned: bool,
    wrap_kernel: WrapKernel | None,
) -> Kernels:
    """Negotiate requests that differ from those of the kernel table; the kernels must have the table's names.

    Raises:
        KernelError: another kernel would be chosen, which the table does not show.
    """
    chosen = recipe.kernels.chosen()
    more = negotiate(plugins, requests, chosen, recipe.kernels.fallback, planned=planned, wrap_kernel=wrap_kernel)
    first = {row.operation: row.kernel for row in kernels.table.rows}
    for row in more.table.rows:
        if row.kernel != first[row.operation]:
            msg = (
                f"{row.operation} is kernel '{first[row.operation]}', but would be '{row.kernel}' for {where}.\n"
                f"Name one that serves all {all_of}: kernels.{row.operation}."
            )
            raise KernelError(msg)
    return more
