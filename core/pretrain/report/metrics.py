"""Writes and reads metrics.jsonl: one JSON object per line; a crash loses at most the line being written."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any, Self

from pretrain.atomic_files import replacing
from pretrain.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from io import FileIO
    from pathlib import Path

    from pretrain.report.records import Record

FILE = "metrics.jsonl"


class MetricsWriter:
    """Append records; each reaches the operating system before `write` returns. Reopening repairs a torn last line."""

    def __init__(self, path: Path, *, resume_at: int | None = None, left_out: Sequence[Sequence[int]] = ()) -> None:
        """Open for appending, without the lines after `resume_at`, which the resumed run writes again.

        Of rollbacks those of the `left_out` stretches (first, last iteration) stay: the resumed run repeats others.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _repair(path, resume_at, left_out)
        self._path = path
        self._evaluations = _evaluations(path)
        self._file = appended(path)

    def write(self, record: Record) -> None:
        """Append one line, with null for values that are not finite; all of it, or nothing (OSError: a full disk)."""
        line = json.dumps(record.to_json(), allow_nan=False).encode() + b"\n"
        end = os.fstat(self._file.fileno()).st_size
        if self._file.write(line) != len(line):  # a disk takes what there is room for
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def go_back(self, iteration: int, left_out: Sequence[Sequence[int]] = ()) -> None:
        """Drop the lines after an iteration, as a resumed run does; RunError: they cannot be dropped."""
        self._evaluations = {(split, at) for split, at in self._evaluations if at <= iteration}
        try:
            if self._path.exists():  # somebody may have removed it
                _repair(self._path, iteration, left_out)
        finally:
            before, self._file = self._file, appended(self._path)
            before.close()

    def has_evaluation(self, split: str, iteration: int) -> bool:
        """Return whether the file had an evaluation of this split at this iteration when it was opened."""
        return (split, iteration) in self._evaluations

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def appended(path: Path) -> FileIO:
    """Open a file for appending, which changes nothing of one that exists."""
    try:
        return path.open("ab", buffering=0)
    except OSError as exc:
        msg = f"{path} cannot be written: {exc.strerror}.\nMake it writable, or move it."
        raise RunError(msg) from exc


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the objects of all complete lines; a torn last line of a killed run is left out."""
    return [json.loads(line) for line in _complete(path, _lines(path))]


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines(keepends=True)
    except OSError as exc:
        msg = f"{path}: cannot be read ({exc.strerror}).\nA run writes it when it logs its first iteration."
        raise RunError(msg) from exc


def _evaluations(path: Path) -> set[tuple[str, int]]:
    records = read_metrics(path) if path.exists() else []
    return {(record.get("split", ""), record["iteration"]) for record in records if record.get("kind") == "eval"}


def _complete(path: Path, lines: list[bytes]) -> list[bytes]:
    """Return the lines without a torn last one."""
    for number, line in enumerate(lines, start=1):
        if not _is_record(line):
            if number == len(lines):
                return lines[:-1]
            msg = f"{path}:{number}: not a JSON object with an iteration.\nDelete the line, or restore the file."
            raise RunError(msg)
    return lines


def _stays(record: dict[str, Any], resume_at: int, left_out: Sequence[Sequence[int]]) -> bool:
    """Return whether a record is kept if the training continues from an iteration."""
    stretch = [record.get("first_left_out"), record.get("last_left_out")]
    is_known = record.get("event") != "rollback" or stretch in left_out
    return is_known and bool(record["iteration"] <= resume_at)


def _is_record(line: bytes) -> bool:
    if not line.endswith(b"\n"):
        return False
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and isinstance(value.get("iteration"), int)


def _repair(path: Path, resume_at: int | None, left_out: Sequence[Sequence[int]]) -> None:
    """Drop a torn last line and the lines that a resumed run will write again; write the file only if it changes."""
    lines = _lines(path)
    kept = [
        line for line in _complete(path, lines) if resume_at is None or _stays(json.loads(line), resume_at, left_out)
    ]
    if kept == lines:
        return
    with replacing(path, error=RunError) as file:
        file.writelines(kept)
