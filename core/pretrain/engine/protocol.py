"""The engine as the training loop, evaluation and checkpoints know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

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


class ScoredTokens(NamedTuple):
    """Tokens of which the last ones are scored, each after all those before it."""

    tokens: Sequence[int]  # at most model.seq_length + 1; the first cannot be scored
    scored: int  # number of those at the end


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Result of an optimizer step. Tensors stay on the device until they are logged."""

    # What the step minimizes, before it, fp32 scalar: its mean over data- and context-parallel ranks is the mean over
    # micro-batches of their means over tokens, or the mean over tokens with `train.calculate_per_token_loss`.
    # None where the rank is not on the last stage.
    loss: Tensor | None
    grad_norm: Tensor | None  # before clipping, over the whole model, fp32 scalar; None when the step was skipped
    skipped: bool  # inf or nan in the gradients: weights and schedule did not change (fp16; all of DeepSpeed)
    withheld: bool = False  # the caller did not keep the update: weights, optimizer and schedule did not change
    # Sum of this rank's gradients before their reduction over the data-parallel ranks, fp32 scalar, not finite where
    # they are not; None where it is not known. With DeepSpeed those of the embedding's output alone, which the
    # gradient of any later activation reaches.
    own_gradients: Tensor | None = None
    # Further metrics of the table (pretrain.report.metric_table); None for one that is not measured in this step.
    # Every engine names all of them.
    metrics: Mapping[str, Tensor | float | None] = field(default_factory=dict)


class ForwardEngine(Saved, Protocol):
    """A model, distributed over the ranks, as evaluation and generation use it; all ranks call its methods together."""

    def evaluate(self, batches: Iterator[Batch] | None, num_microbatches: int, iters: int = 1) -> Tensor:
        """Return the mean loss over the unmasked tokens of `iters` global batches, fp32 scalar, on all ranks."""

    def next_token_logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits of the token after `tokens`, fp32 [vocabulary], on all ranks."""

    def log_likelihoods(self, samples: Sequence[ScoredTokens]) -> Tensor:
        """Return of each sample the log-likelihood of its scored tokens, and how many are not the most probable.

        fp32 [samples, 2], in nats, on all ranks.
        """

    @property
    def reads_data(self) -> bool:
        """True if this rank's pipeline stages need micro-batches."""

    @property
    def models(self) -> Sequence[nn.Module]:
        """This rank's model chunks, without the engine's wrappers."""

    def close(self) -> None:
        """Release model and optimizer, so that another engine can be built in this process."""


class Engine(ForwardEngine, Protocol):
    """A model with its optimizer and learning-rate schedule, distributed over the ranks."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""

    @property
    def loss_scale(self) -> float:
        """Factor of the loss in the backward pass; 1.0 where gradients are not scaled."""

    def train_step(
        self,
        batches: Iterator[Batch] | None,
        num_microbatches: int,
        timers: PhaseTimers | None = None,
        keep_update: KeepUpdate | None = None,
    ) -> Step:
        """Take one optimizer step over `num_microbatches` micro-batches of this rank; no batches where it reads none.

        `keep_update` decides on the update when the gradients are there; all ranks call it together, and it returns the
        same on all. Without it the loss is not waited for. `timers` measure the phases "forward-backward" and
        "optimizer".

        No host synchronization, but for fp16, whose overflow decides whether there is an update, and for counted zeros.
        DeepSpeed synchronizes by itself: 6 or 7 times a step under ZeRO, per parameter at stage 0 (docs/fake-gpu.md).
        """

    def advance_schedule(self, samples: int) -> None:
        """Advance the learning-rate schedule by the samples of a step that was not skipped."""

    def parameters_norm(self) -> Tensor:
        """Return the Euclidean norm of all parameters, fp32 scalar, equal on all ranks."""

    def replicated_weights(self) -> AbstractContextManager[list[tuple[str, Tensor]]]:
        """Enter a block with the weights that all data-parallel ranks hold alike, as the last step left them, by name.

        None under ZeRO-3. Names are those of `pretrain.model.weights.named_weights`.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineParts:
    """Parts of an engine, in a world whose parallel groups exist."""

    recipe: Recipe
    backend: Backend
    kernels: Kernels
    chunks: Callable[..., list[GPT]]  # `pretrain.model.build.build`, but for `building` and `whole`
    device: torch.device
    vocab_size: int  # entries of the tokenizer, before padding
    notify: Callable[[str], None]  # shows the user a line
    planned: bool = False  # on fake tensors, which have no values, in a fake world

    @property
    def overflow(self) -> Overflow | None:
        """The device's sticky overflow flag, where fp16 needs it."""
        return self.backend.overflow() if self.recipe.precision.dtype == "fp16" else None
