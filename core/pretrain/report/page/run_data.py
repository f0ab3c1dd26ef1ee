"""Reads run directories for a report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from pretrain.errors import RunError
from pretrain.report import environment_file, metrics
from pretrain.report.metric_table import NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Point = tuple[float, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunData:
    """One run; `recipe` is the text of recipe.yml, `environment` the content of environment.json, both may be empty."""

    name: str
    train: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    events: list[dict[str, Any]]
    recipe: str
    environment: dict[str, Any]

    def curve(self, key: str) -> list[Point]:
        """Return a metric over iterations, None where a line has no value; ValueError without a row of the table."""
        if key not in NAMES:
            msg = f"no row of report/metric_table.py: {key}"
            raise ValueError(msg)
        return [(line["iteration"], line.get(key)) for line in self.train]

    def evaluated(self, split: str) -> list[Point]:
        """Return the loss of a split over iterations; the last one if an iteration has several."""
        losses = {line["iteration"]: line.get("lm_loss") for line in self.evaluations if line.get("split") == split}
        return sorted(losses.items())

    def settings(self) -> dict[str, str]:
        """Return the recipe's keys as "section.key"."""
        sections = yaml.safe_load(self.recipe) or {}
        return {
            f"{section}.{key}": json.dumps(value)
            for section, keys in sections.items()
            if isinstance(keys, dict)
            for key, value in keys.items()
        }


def read_runs(run_dirs: Sequence[Path]) -> list[RunData]:
    """Read runs and give them unique names."""
    names = [run_dir.resolve().name for run_dir in run_dirs]
    unique = len(set(names)) == len(names)
    return [_read(run_dir, name if unique else str(run_dir)) for run_dir, name in zip(run_dirs, names, strict=True)]


def _read(run_dir: Path, name: str) -> RunData:
    if not (run_dir / metrics.FILE).is_file():
        what = "holds no metrics.jsonl" if run_dir.is_dir() else "is not a directory"
        msg = f"{run_dir} {what}.\nGive the directory of a run: the one that `pretrain run` prints, or its --run-dir."
        raise RunError(msg)
    lines = metrics.read_metrics(run_dir / metrics.FILE)
    if not lines:
        msg = f"{run_dir / metrics.FILE} is empty: the run has logged no iteration yet.\nWait for logging.log_interval."
        raise RunError(msg)
    recipe = run_dir / "recipe.yml"
    return RunData(
        name=name,
        train=[line for line in lines if line.get("kind") == "train"],
        evaluations=[line for line in lines if line.get("kind") == "eval"],
        events=[line for line in lines if line.get("kind") == "event"],
        recipe=recipe.read_text(encoding="utf-8") if recipe.is_file() else "",
        environment=_environment(run_dir / environment_file.FILE),
    )


def _environment(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        msg = f"{path} is not JSON ({exc}).\nDelete it to make the report without it."
        raise RunError(msg) from exc
    return content
