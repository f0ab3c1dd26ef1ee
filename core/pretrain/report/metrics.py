"""Writes and reads metrics.jsonl: one JSON object per line; a crash loses at most the line being written."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pretrain.atomic_files import replacing
from pretrain.errors import RunError
from pretrain.report.metric_table import METRICS, checked, console_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from io import FileIO
    from pathlib import Path

    from pretrain.report.metric_table import Values


Scalar = str | int | float | list[float | None] | None


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


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRecord:
    """Results of one task, or group, of lm-evaluation-harness after `iteration` iterations."""

    kind: Literal["task"] = "task"
    iteration: int
    task: str
    num_fewshot: int | None  # examples before each question; None for a group whose tasks differ
    limit: int | None  # first documents that were taken; None: all
    metrics: Mapping[str, float]  # by lm-eval's keys, which end with a filter: "acc,none", "acc_stderr,none"

    def to_json(self) -> dict[str, Any]:
        """Return the line's object: None for values that are not finite."""
        line = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return line | {"metrics": {name: _finite(value) for name, value in self.metrics.items()}}


Record = TrainRecord | EvalRecord | EventRecord | TaskRecord


def _finite(value: Scalar) -> Any:
    if isinstance(value, list):
        return [_finite(each) for each in value]
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


def task_lines(record: TaskRecord, total_iterations: int) -> list[str]:
    """Return a line for each number of a task, with its standard error where there is one."""
    where = f"{record.task} at iteration {record.iteration}/{total_iterations}"
    return [
        f"{where} | {name} {number(value, '.4f')}{'' if error is None else f' +- {error:.4f}'}"
        for name, value, error in with_errors(record.metrics)
    ]


def with_errors(metrics: Mapping[str, float | None]) -> list[tuple[str, float | None, float | None]]:
    """Return name, value and standard error of each number of a task; the name has no filter where there is none."""
    found = []
    for key, value in metrics.items():
        name, _, chosen = key.partition(",")
        if not name.endswith("_stderr"):
            shown = name if chosen == "none" else f"{name} ({chosen})"
            found.append((shown, value, metrics.get(f"{name}_stderr,{chosen}")))
    return found


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


FILE = "metrics.jsonl"


class MetricsWriter:
    """Append records; each reaches the operating system before `write` returns. Reopening repairs a torn last line."""

    def __init__(self, path: Path, *, resume_at: int | None = None, left_out: Sequence[Sequence[int]] = ()) -> None:
        """Open for appending, without the lines after `resume_at`, which the resumed run writes again.

        Of rollbacks those of the `left_out` stretches (first, last iteration) stay: the resumed run repeats others.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        records = _repair(path, resume_at, left_out) if path.exists() else []
        self._path = path
        self._evaluations = {_evaluation(each) for each in records if each.get("kind") in _TOLD_APART_BY}
        self._file = appended(path)

    def write(self, record: Record) -> None:
        """Append one line, with null for values that are not finite, as `append`."""
        self.append(record.to_json())

    def append(self, values: Mapping[str, Any]) -> None:
        """Append the values as one line; all of it, or nothing (OSError: a full disk)."""
        line = json.dumps(values, allow_nan=False).encode() + b"\n"
        end = os.fstat(self._file.fileno()).st_size
        if self._file.write(line) != len(line):  # a disk takes what there is room for
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def go_back(self, iteration: int, left_out: Sequence[Sequence[int]] = ()) -> None:
        """Drop the lines after an iteration, as a resumed run does; RunError: they cannot be dropped."""
        self._evaluations = {each for each in self._evaluations if each[1] <= iteration}
        try:
            if self._path.exists():  # somebody may have removed it
                _repair(self._path, iteration, left_out)
        finally:
            before, self._file = self._file, appended(self._path)
            before.close()

    def has_evaluation(self, line: Mapping[str, Any]) -> bool:
        """Return whether the file had an evaluation as this line's, whatever its numbers, when it was opened."""
        return _evaluation(line) in self._evaluations

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


_TOLD_APART_BY = {"eval": ("split",), "task": ("task", "num_fewshot", "limit")}


def _evaluation(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return kind and iteration of an evaluation's line, and what tells it from others of that iteration."""
    return (line["kind"], line["iteration"], *(line.get(key) for key in _TOLD_APART_BY[line["kind"]]))


def appended(path: Path) -> FileIO:
    """Open a file for appending, which changes nothing of one that exists."""
    try:
        return path.open("ab", buffering=0)
    except OSError as exc:
        msg = f"{path} cannot be written: {exc.strerror}.\nMake it writable, or move it."
        raise RunError(msg) from exc


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the objects of all complete lines; a torn last line of a killed run is left out."""
    return _parsed(path)[1]


def _parsed(path: Path) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Return all lines, and the objects of all but a torn last one."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as exc:
        msg = f"{path}: cannot be read ({exc.strerror}).\nA run writes it when it logs its first iteration."
        raise RunError(msg) from exc
    records = []
    for number, line in enumerate(lines, start=1):
        record = _record(line)
        if record is not None:
            records.append(record)
        elif number < len(lines):
            msg = f"{path}:{number}: not a JSON object with an iteration.\nDelete the line, or restore the file."
            raise RunError(msg)
    return lines, records


def _record(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("iteration"), int) else None


def _stays(record: dict[str, Any], resume_at: int, left_out: Sequence[Sequence[int]]) -> bool:
    """Return whether a record is kept if the training continues from an iteration."""
    stretch = [record.get("first_left_out"), record.get("last_left_out")]
    is_known = record.get("event") != "rollback" or stretch in left_out
    return is_known and bool(record["iteration"] <= resume_at)


def _repair(path: Path, resume_at: int | None, left_out: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Drop a torn last line and the lines that a resumed run will write again; return the records that stay."""
    lines, records = _parsed(path)
    pairs = zip(lines, records, strict=False)  # a torn line has no record
    kept = [pair for pair in pairs if resume_at is None or _stays(pair[1], resume_at, left_out)]
    if [line for line, _ in kept] != lines:
        with replacing(path, error=RunError) as file:
            file.writelines(line for line, _ in kept)
    return [record for _, record in kept]
