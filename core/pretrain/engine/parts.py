"""Parts of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from pretrain.model.gpt import GPT
    from pretrain.plugins.backend import Backend, Overflow
    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.recipe import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Parts of an engine, in a world whose parallel groups exist.

    Attributes:
        recipe: what is trained.
        backend: for which the bridge is installed.
        kernels: the negotiated ones.
        chunks: makes the model chunks of this rank; see `pretrain.model.build.build` for its two options.
        device: of this rank.
        vocab_size: entries of the tokenizer, before padding.
        notify: shows the user a line while the engine is built.
        planned: on torch's fake tensors, which have no values, in a fake world: no weight is initialized.
    """

    recipe: Recipe
    backend: Backend
    kernels: Kernels
    chunks: Callable[..., list[GPT]]
    device: torch.device
    vocab_size: int
    notify: Callable[[str], None]
    planned: bool = False

    @property
    def overflow(self) -> Overflow | None:
        """The device's sticky overflow flag, where fp16 needs it."""
        return self.backend.overflow() if self.recipe.precision.dtype == "fp16" else None
