"""Records of metrics.jsonl: its three kinds of line."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Scalar = str | int | float | None

_OPTIONAL = ("params_norm", "num_zeros_in_grad", "slowest_rank", "slowdown", "slowdown_cause")
"""Keys of a training line that are left out where there is no value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRecord:
    """One logged training interval, which ends with `iteration`.

    Attributes:
        kind: always "train".
        iteration: iterations done since the training began, over all resumed parts.
        consumed_samples: sequences read since the training began, those of batches that were left out included.
        consumed_tokens: `consumed_samples` times the sequence length.
        lm_loss: loss in nats per token, the mean over the interval's iterations that were not skipped; None if all were
            skipped. The loss of an iteration is the mean over the micro-batches of the global batch of their means over
            tokens; with `train.calculate_per_token_loss`, the mean over all tokens of the global batch.
        grad_norm: Euclidean norm before clipping, of the interval's last iteration; None if that was skipped.
        learning_rate: of the interval's last iteration.
        loss_scale: of fp16; None if the loss is not scaled.
        global_batch_size: sequences of the interval's last iteration, over all ranks.
        skipped_iterations: iterations of the interval without an update, because of an fp16 overflow or, with
            `train.loss_spike.action: skip`, of a loss spike.
        nan_iterations: iterations of the interval whose loss was not finite.
        seconds_per_iteration: wall time, evaluation and checkpoints excluded.
        samples_per_second: over all ranks.
        tokens_per_second_per_device: tokens of all ranks, divided by the number of ranks.
        tflops_per_device: model TFLOP/s (`flops`).
        mfu: share of the device's peak, 0 to 1; None if the backend declares no peak.
        memory_peak_bytes: of this rank's device since the process began; None if the device does not report it.
        params_norm: Euclidean norm of the parameters; only if logged.
        num_zeros_in_grad: number of gradient entries that are zero; only if logged.
        slowest_rank: the rank whose own work takes longest (pretrain.training.reporting.stragglers); only if logged.
        slowdown: share by which it is slower than the median of the others, 0.25 for 25 %; only if logged.
        slowdown_cause: "compute", its attention kernels; or "data", its waiting for micro-batches; only if logged.
    """

    kind: Literal["train"] = "train"
    iteration: int
    consumed_samples: int
    consumed_tokens: int
    lm_loss: float | None
    grad_norm: float | None
    learning_rate: float
    loss_scale: float | None
    global_batch_size: int
    skipped_iterations: int
    nan_iterations: int
    seconds_per_iteration: float
    samples_per_second: float
    tokens_per_second_per_device: float
    tflops_per_device: float
    mfu: float | None
    memory_peak_bytes: int | None
    params_norm: float | None = None
    num_zeros_in_grad: int | None = None
    slowest_rank: int | None = None
    slowdown: float | None = None
    slowdown_cause: Literal["compute", "data"] | None = None

    def to_json(self) -> dict[str, Scalar]:
        """Return the line's object: None for values that are not finite, the optional keys only if they were logged."""
        line = {field.name: _finite(getattr(self, field.name)) for field in dataclasses.fields(self)}
        for key in _OPTIONAL:
            if getattr(self, key) is None:
                del line[key]
        return line


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRecord:
    """One evaluation of one split.

    Attributes:
        kind: always "eval".
        split: "valid" or "test".
        iteration: iterations done before the evaluation.
        lm_loss: mean over the evaluated tokens, in nats per token.
        ppl: exp of `lm_loss`.
    """

    kind: Literal["eval"] = "eval"
    split: Literal["valid", "test"]
    iteration: int
    lm_loss: float
    ppl: float

    @classmethod
    def of(cls, split: Literal["valid", "test"], iteration: int, lm_loss: float) -> EvalRecord:
        """Return the record of a loss; its perplexity is infinite if exp overflows a float64."""
        ppl = math.exp(lm_loss) if lm_loss < 709 else math.inf
        return cls(split=split, iteration=iteration, lm_loss=lm_loss, ppl=math.nan if math.isnan(lm_loss) else ppl)

    def to_json(self) -> dict[str, Scalar]:
        """Return the line's object: None for values that are not finite."""
        return {field.name: _finite(getattr(self, field.name)) for field in dataclasses.fields(self)}


@dataclass(frozen=True, kw_only=True, slots=True)
class EventRecord:
    """Something that happened to a training.

    Attributes:
        kind: always "event".
        event: "loss_spike", "rollback" or "straggler".
        iteration: after which the training goes on.
        text: the lines that the user was shown.
        numbers: further keys of the line: the `spike_iteration`, its `loss` and the `median` before it; of a rollback
            the first and last iteration that are left out; the slowest `rank` of stragglers, and its `slowdown`.
    """

    kind: Literal["event"] = "event"
    event: Literal["loss_spike", "rollback", "straggler"]
    iteration: int
    text: str
    numbers: Mapping[str, Scalar] = field(default_factory=dict)

    def to_json(self) -> dict[str, Scalar]:
        """Return the line's object: None for values that are not finite."""
        line: dict[str, Scalar] = {"kind": self.kind, "event": self.event, "iteration": self.iteration}
        return line | {name: _finite(value) for name, value in self.numbers.items()} | {"text": self.text}


Record = TrainRecord | EvalRecord | EventRecord


def _finite(value: Scalar) -> Scalar:
    return None if isinstance(value, float) and not math.isfinite(value) else value
