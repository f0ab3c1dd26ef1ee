"""Records as loggers are given them: each number under the name of its curve, and the line of metrics.jsonl."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pretrain.plugins.logger import LoggedEvent, Metrics
from pretrain.report.metric_table import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretrain.report.metrics import EvalRecord, EventRecord, TaskRecord, TrainRecord
    from pretrain.report.timers import Spread


def of_train(record: TrainRecord) -> Metrics:
    """Return the numbers of a logged interval."""
    found = list(_curves(record))
    return Metrics(
        kind="train",
        iteration=record.iteration,
        consumed_samples=record.consumed_samples,
        curves={name: value for name, value, _ in found},
        by_samples=frozenset(name for name, _, over_samples in found if over_samples),
        line=record.to_json(),
    )


def _curves(record: TrainRecord) -> Iterator[tuple[str, float, bool]]:
    """Yield name, value, and whether it is drawn over samples too, of what the table gives a curve."""
    for metric in METRICS:
        tag, value = metric.tensorboard, record.metrics[metric.name]
        if tag is None or value is None:
            continue
        if metric.over_layers is None:
            yield tag.name, value, tag.over_samples
            continue
        for number, of_layer in enumerate(value, 1):
            if not math.isnan(of_layer):  # a layer without experts
                yield f"{tag.name}/layer {number}", of_layer, tag.over_samples


def of_evaluation(record: EvalRecord, consumed_samples: int) -> Metrics:
    """Return loss and perplexity of one split."""
    name = {"valid": "lm loss validation", "test": "lm loss test"}[record.split]
    curves = {name: record.lm_loss, f"{name} ppl": record.ppl}
    return Metrics(
        kind="eval",
        iteration=record.iteration,
        consumed_samples=consumed_samples,
        curves=curves,
        by_samples=frozenset(curves),
        line=record.to_json(),
    )


def of_task(record: TaskRecord, consumed_samples: int) -> Metrics:
    """Return the numbers of a task, without their standard errors.

    One that a filter chose is named "tasks/gsm8k exact_match/strict-match": MLflow allows no parentheses.
    """
    named = {
        f"tasks/{record.task} {name}" + f"/{chosen}" * (chosen != "none"): value
        for key, value in record.metrics.items()
        for name, _, chosen in [key.partition(",")]
        if not name.endswith("_stderr")
    }
    return Metrics(
        kind="task",
        iteration=record.iteration,
        consumed_samples=consumed_samples,
        curves={name: value for name, value in named.items() if value is not None},
        line=record.to_json(),
    )


def of_timers(spreads: Mapping[str, Spread], iteration: int, consumed_samples: int) -> Metrics:
    """Return the slowest rank's time of each phase in milliseconds, as "forward-backward-time"."""
    curves = {f"{name}-time": slowest for name, (_, slowest) in spreads.items()}
    return Metrics(kind="timers", iteration=iteration, consumed_samples=consumed_samples, curves=curves)


def of_event(record: EventRecord) -> LoggedEvent:
    """Return what happened."""
    return LoggedEvent(name=record.event, iteration=record.iteration, text=record.text, line=record.to_json())
