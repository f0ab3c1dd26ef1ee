"""Negotiation of a run's kernels, in two steps: options of the process groups, then all kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import KernelError
from pretrain.model.requests import attention_requests, collectives_request, kernel_requests
from pretrain.plugins.negotiation.building import negotiate
from pretrain.plugins.negotiation.kernel_table import check_same_on_all_ranks

if TYPE_CHECKING:
    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.building import WrapKernel
    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.plugins.signatures import AttentionFn
    from pretrain.recipe import Recipe


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
    chosen = {"attention": recipe.kernels.attention, "softmax": recipe.kernels.softmax}
    layer = negotiate(plugins, requests, chosen, recipe.kernels.fallback, planned=planned, wrap_kernel=wrap_kernel)
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
