"""Records of metrics.jsonl, its three kinds of line, and their text in the log."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pretrain.report.metric_table import METRICS, checked, console_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.report.metric_table import Values


Scalar = str | int | float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRecord:
    """One logged training interval, which ends with `iteration`; counts are since the training began."""

    kind: Literal["train"] = "train"
    iteration: int
    consumed_samples: int  # those of batches that were left out included
    consumed_tokens: int
    metrics: Values

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", checked(self.metrics))

    def to_json(self) -> dict[str, Scalar]:
        """Return the line's object: None for values that are not finite, the optional keys only if they were logged."""
        keys = ("kind", "iteration", "consumed_samples", "consumed_tokens")
        logged = (metric.name for metric in METRICS if not (metric.optional and self.metrics[metric.name] is None))
        return {key: getattr(self, key) for key in keys} | {name: _finite(self.metrics[name]) for name in logged}


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRecord:
    """One evaluation of one split, after `iteration` iterations."""

    kind: Literal["eval"] = "eval"
    split: Literal["valid", "test"]
    iteration: int
    lm_loss: float  # mean over the evaluated tokens, in nats per token
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
    """Something that happened to a training, which continues after `iteration`; `text` is what the user was shown."""

    kind: Literal["event"] = "event"
    event: Literal["loss_spike", "rollback", "straggler"]
    iteration: int
    text: str
    numbers: Mapping[str, Scalar] = field(default_factory=dict)  # further keys of the line

    def to_json(self) -> dict[str, Scalar]:
        """Return the line's object: None for values that are not finite."""
        line: dict[str, Scalar] = {"kind": self.kind, "event": self.event, "iteration": self.iteration}
        return line | {name: _finite(value) for name, value in self.numbers.items()} | {"text": self.text}


Record = TrainRecord | EvalRecord | EventRecord


def _finite(value: Scalar) -> Scalar:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def train_line(record: TrainRecord, total_iterations: int) -> str:
    """Return one log line with the numbers that scripts usually parse."""
    parts = [
        f"iteration {record.iteration:>{len(str(total_iterations))}}/{total_iterations}",
        f"samples {record.consumed_samples}",
        *console_parts(record.metrics),
        f"left {duration(seconds_left(record, total_iterations))}",
    ]
    return " | ".join(parts)


def evaluation_line(record: EvalRecord, total_iterations: int) -> str:
    """Return one line with loss and perplexity."""
    name = {"valid": "validation", "test": "test"}[record.split]
    where = f"iteration {record.iteration}/{total_iterations}"
    return f"{name} at {where} | loss {number(record.lm_loss, '.4f')} | ppl {number(record.ppl, '.4g')}"


def seconds_left(record: TrainRecord, total_iterations: int) -> float:
    """Return the time that the remaining iterations take at the speed of the interval."""
    seconds: float = record.metrics["seconds_per_iteration"]
    return max(0, total_iterations - record.iteration) * seconds


def number(value: float | None, form: str) -> str:
    """Return the formatted value; "nan" for None."""
    return "nan" if value is None or math.isnan(value) else format(value, form)


def duration(seconds: float) -> str:
    """Return 0:42, 1:02:03 or 3d 04:05:06."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
