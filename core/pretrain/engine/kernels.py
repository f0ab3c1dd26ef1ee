"""Choice of a training's kernels; imports no engine, so that tools may ask for them alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.errors import KernelError
from pretrain.model.requests import attention_requests, collectives_request, kernel_requests
from pretrain.plugins.negotiation.kernel_table import check_same_on_all_ranks
from pretrain.plugins.negotiation.kernels import negotiate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.kernels import Kernels, WrapKernel
    from pretrain.plugins.requests import Request
    from pretrain.plugins.signatures import AttentionFn
    from pretrain.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Negotiation:
    """Negotiates the kernels of a recipe; raises KernelError where an operation has no allowed kernel."""

    recipe: Recipe
    plugins: Plugins
    is_planned: bool = False
    wrap_kernel: WrapKernel | None = None

    def collectives(self) -> Kernels:
        """Choose the options of the process groups, which are needed before the groups are made."""
        backend, section = self.plugins.backend, self.recipe.kernels
        request = collectives_request(self.recipe, backend.device_type, backend.process_group)
        return negotiate(self.plugins, [request], section.chosen(), section.fallback, planned=self.is_planned)

    def kernels(self, vocab_size: int, collectives: Kernels) -> Kernels:
        """Choose all other kernels, and check that all ranks, which call it together, choose the same."""
        backend = self.plugins.backend
        requests = kernel_requests(self.recipe, backend.device_type, vocab_size, backend.device_name())
        kernels = self._negotiate(requests, earlier=collectives)
        check_same_on_all_ranks(kernels.table)
        return kernels

    def attention_of_layer(self, kernels: Kernels, layer_number: int) -> AttentionFn:
        """Return a layer's attention kernel; layers differ only where their scores are scaled differently."""
        if not self.recipe.model.apply_query_key_layer_scaling:
            return kernels.attention
        backend = self.plugins.backend
        requests = attention_requests(
            self.recipe, backend.device_type, backend.device_name(), layer_number=layer_number
        )
        more = self._negotiate(requests)
        first = {row.operation: row.kernel for row in kernels.table.rows}
        for row in more.table.rows:  # the kernels must be those of the table, which would not show others
            if row.kernel != first[row.operation]:
                msg = (
                    f"{row.operation} is kernel '{first[row.operation]}', but would be '{row.kernel}' for layer "
                    f"{layer_number}.\nName one that serves all layers: kernels.{row.operation}, or leave out "
                    "model.apply_query_key_layer_scaling."
                )
                raise KernelError(msg)
        return more.attention

    def _negotiate(self, requests: Sequence[Request], earlier: Kernels | None = None) -> Kernels:
        section = self.recipe.kernels
        return negotiate(
            self.plugins,
            requests,
            section.chosen(),
            section.fallback,
            earlier=earlier,
            planned=self.is_planned,
            wrap_kernel=self.wrap_kernel,
        )
