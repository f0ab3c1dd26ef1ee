"""Construction of an engine: process groups, random generators, kernels, model, optimizer."""

from __future__ import annotations

from dataclasses import dataclass
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
    """Build this rank's part of the engine; all ranks call it together, in the world of `groups.joined`.

    `planned` is a device of fake tensors: kernels are then the stand-ins that the plugins offer for their own device
    (`Offer.fake`), and weights have no values. `vocab_size` is the tokenizer's, before padding.
    """
    parts = _parts(recipe, plugins, vocab_size, device, notify, planned=planned, wrap_kernel=wrap_kernel)
    if recipe.engine.name == "deepspeed":
        from pretrain.engine.deepspeed.engine import DeepSpeedEngine  # noqa: PLC0415  the megatron engine runs without it

        return DeepSpeedEngine(parts), parts.kernels
    return MegatronEngine(parts), parts.kernels


def build_forward_engine(
    recipe: Recipe,
    plugins: Plugins,
    vocab_size: int,
    device: torch.device,
    notify: Callable[[str], None],
    *,
    wrap_kernel: WrapKernel | None = None,
) -> tuple[ForwardEngine, Kernels]:
    """Build this rank's part of the model without an optimizer, as `build_engine`."""
    parts = _parts(recipe, plugins, vocab_size, device, notify, planned=None, wrap_kernel=wrap_kernel)
    return ForwardOnlyEngine(parts), parts.kernels


def _parts(
    recipe: Recipe,
    plugins: Plugins,
    vocab_size: int,
    device: torch.device,
    notify: Callable[[str], None],
    *,
    planned: Backend | None,
    wrap_kernel: WrapKernel | None,
) -> EngineParts:
    is_planned, backend = planned is not None, planned or plugins.backend
    negotiation = Negotiation(recipe, plugins, is_planned=is_planned, wrap_kernel=wrap_kernel)
    collectives = negotiation.collectives()
    # A planned world's groups have no options, and none is for tensors on the host.
    options = (lambda _group_name: None) if is_planned else collectives.collectives
    groups.make_parallel_groups(recipe, options, with_gloo=not is_planned)
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
            norm_of=partial(negotiation.norm_of_width, kernels),
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
        instead = ", or leave out model.apply_query_key_layer_scaling"
        return self._same_kernels(kernels, requests, "layer", layer_number, instead).attention

    def norm_of_width(self, kernels: Kernels, width: int) -> NormFn:
        """Return the norm kernel of a width, which is asked for by itself where it is not the hidden size."""
        if width == self.recipe.model.hidden_size:
            return kernels.norm
        backend = self.plugins.backend
        requests = [norm_request(self.recipe, backend.device_type, backend.device_name(), width=width)]
        return self._same_kernels(kernels, requests, "width", width).norm

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

    def _same_kernels(
        self, kernels: Kernels, requests: Sequence[Request], what: str, number: int, instead: str = ""
    ) -> Kernels:
        """Negotiate further requests; the kernels must be those of the table, which would not show others."""
        more = self._negotiate(requests)
        first = {row.operation: row.kernel for row in kernels.table.rows}
        for row in more.table.rows:
            if row.kernel != first[row.operation]:
                msg = (
                    f"{row.operation} is kernel '{first[row.operation]}', but would be '{row.kernel}' for {what} "
                    f"{number}.\nName one that serves all {what}s: kernels.{row.operation}{instead}."
                )
                raise KernelError(msg)
        return more
