"""The engine as the training loop, evaluation and checkpoints know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from pretrain.checkpoint.contents import Saved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from pretrain.model.gpt import GPT
    from pretrain.plugins.backend import Backend, Overflow
    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.recipe import Recipe
    from pretrain.report.timers import PhaseTimers


KeepUpdate = Callable[[Tensor | None], bool]
"""Says whether a step's update is to be made, by its loss as `Step` has it."""

Batch = Mapping[str, Tensor | None]
"""A micro-batch: see pretrain.data.samples.batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Result of an optimizer step. Tensors stay on the device until they are logged.

    Attributes:
        loss: what the step minimizes, before it, fp32 scalar: its mean over the data-parallel ranks is the mean over
            micro-batches of their means over tokens, or the mean over tokens with `train.calculate_per_token_loss`.
            None where the rank is not on the last stage.
        grad_norm: before clipping, over the whole model, fp32 scalar; None when the step was skipped.
        skipped: the gradients had an inf or nan, so weights and schedule did not change (fp16; all of DeepSpeed).
        withheld: the caller did not keep the update, so weights, optimizer and schedule did not change.
        own_gradients: a sum of gradients of this rank, before they were reduced over the data-parallel ranks, fp32
            scalar; not finite where they are not. With DeepSpeed those of the embedding's output alone, which the
            gradient of any later activation reaches. None where it is not known.
        metrics: further metrics of the table (pretrain.report.metric_table) that an engine measures, by name; None for
            one that it does not, or not in this step. Every engine names all of them.
    """

    loss: Tensor | None
    grad_norm: Tensor | None
    skipped: bool
    withheld: bool = False
    own_gradients: Tensor | None = None
    metrics: Mapping[str, Tensor | float | None] = field(default_factory=dict)


class ForwardEngine(Saved, Protocol):
    """A model, distributed over the ranks, as evaluation and generation use it; all ranks call its methods together.

    `pretrain.checkpoint.storage` loads its `state`.
    """

    def evaluate(self, batches: Iterator[Batch] | None, num_microbatches: int, iters: int = 1) -> Tensor:
        """Return the mean loss over all tokens of `iters` global batches, fp32 scalar, on all ranks.

        Tokens that `loss_mask` leaves out do not count; nan where it leaves out all.
        """
        ...

    def next_token_logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits of the token after `tokens`, fp32 [vocabulary], on all ranks."""
        ...

    @property
    def reads_data(self) -> bool:
        """True if this rank's pipeline stages need micro-batches."""
        ...

    @property
    def models(self) -> Sequence[nn.Module]:
        """This rank's model chunks, without the engine's wrappers."""
        ...

    def close(self) -> None:
        """Release model and optimizer, so that another engine can be built in this process."""
        ...


class Engine(ForwardEngine, Protocol):
    """A model with its optimizer and learning-rate schedule, distributed over the ranks.

    `pretrain.checkpoint.storage` saves and loads its `state`.
    """

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        ...

    @property
    def loss_scale(self) -> float:
        """Factor of the loss in the backward pass; 1.0 where gradients are not scaled."""
        ...

    def train_step(
        self,
        batches: Iterator[Batch] | None,
        num_microbatches: int,
        timers: PhaseTimers | None = None,
        keep_update: KeepUpdate | None = None,
    ) -> Step:
        """Take one optimizer step over `num_microbatches` micro-batches of this rank.

        No host synchronization, but for fp16, whose overflow decides whether there is an update, and for counted zeros.
        DeepSpeed synchronizes by itself: 6 or 7 times a step under ZeRO, per parameter at stage 0 (docs/fake-gpu.md).

        Args:
            batches: gives at least that many; None where `reads_data` is False.
            num_microbatches: of this rank.
            timers: measure the phases "forward-backward" and "optimizer".
            keep_update: decides on the update when the gradients are there; all ranks call it together, and it returns
                the same on all. None keeps every update, and does not wait for the loss.
        """
        ...

    def advance_schedule(self, samples: int) -> None:
        """Advance the learning-rate schedule by the samples of a step that was not skipped."""
        ...

    def parameters_norm(self) -> Tensor:
        """Return the Euclidean norm of all parameters, fp32 scalar, equal on all ranks."""
        ...

    def replicated_weights(self) -> AbstractContextManager[list[tuple[str, Tensor]]]:
        """Enter a block with the weights that all data-parallel ranks hold alike, as the last step left them, by name.

        None under ZeRO-3. Names count layers from 1 over all stages: "mlp.linear_fc1.weight (layer 7 of 12)".
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineParts:
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
