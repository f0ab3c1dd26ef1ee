"""The page of one or several runs: `pretrain report`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any

import yaml

from pretrain.errors import RunError
from pretrain.report import environment_file, metrics
from pretrain.report.html import charts, framed, legend, paragraph, section, table, write_page
from pretrain.report.metric_table import METRICS, figures
from pretrain.report.metrics import duration, number
from pretrain.report.step_summary import UNSEEN, latest_summaries, phase_name
from pretrain.report.step_trace import PHASES
from pretrain.report.svg import COLOURS, ChartLine, Share, bars, chart

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pretrain.report.step_summary import StepSummary
    from pretrain.report.svg import Point


@dataclass(frozen=True, kw_only=True, slots=True)
class RunData:
    """One run; `recipe` is the text of recipe.yml, `environment` the content of environment.json, both may be empty."""

    name: str
    train: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    events: list[dict[str, Any]]
    tasks: list[dict[str, Any]]
    recipe: str
    environment: dict[str, Any]
    profile: list[StepSummary]  # of its latest profile, by rank

    def curve(self, key: str) -> list[Point]:
        """Return a metric over iterations, None where a line has no value; ValueError without a row of the table."""
        metric = next((metric for metric in METRICS if metric.name == key), None)
        if metric is None:
            msg = f"report/metric_table.py has no row {key}"
            raise ValueError(msg)
        return [(line["iteration"], metric.number(line.get(key))) for line in self.train]

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
        what += "; give the runs in it" if any(run_dir.glob(f"*/{metrics.FILE}")) else ""
        msg = f"{run_dir} {what}.\nGive the directory of a run: the one that `pretrain run` prints, or its --run-dir."
        raise RunError(msg)
    lines = metrics.read_metrics(run_dir / metrics.FILE)
    if not lines:
        msg = (
            f"{run_dir / metrics.FILE} is empty: the run has logged no iteration.\n"
            "Wait for logging.log_interval, if it still runs."
        )
        raise RunError(msg)
    recipe = run_dir / "recipe.yml"
    return RunData(
        name=name,
        train=[line for line in lines if line.get("kind") == "train"],
        evaluations=[line for line in lines if line.get("kind") == "eval"],
        events=[line for line in lines if line.get("kind") == "event"],
        tasks=[line for line in lines if line.get("kind") == "task"],
        recipe=recipe.read_text(encoding="utf-8") if recipe.is_file() else "",
        environment=_environment(run_dir / environment_file.FILE),
        profile=latest_summaries(run_dir),
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


def write_report(run_dirs: Sequence[Path], output: Path) -> list[Path]:
    """Write one HTML page about one or several runs, atomically; return those that have logged nothing, left out."""
    empty = [each for each in run_dirs if (each / metrics.FILE).is_file() and not (each / metrics.FILE).stat().st_size]
    drawn = [each for each in run_dirs if each not in empty]
    write_page(page(read_runs(drawn or run_dirs)), output, RunError)
    return empty


def page(runs: Sequence[RunData]) -> str:
    """Return the page."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    names = [(f"c{index % COLOURS}", run.name) for index, run in enumerate(runs)]
    parts = [
        legend(names) if len(runs) > 1 else "",
        _summary(runs),
        charts(_charts(runs)),
        section("Recipes differ in", _differences(runs), unfolded=True),
        *(_about(run, heading=len(runs) > 1) for run in runs),
    ]
    return framed(title, parts)


def _charts(runs: Sequence[RunData]) -> list[str]:
    drawn = []
    for name, figure in figures():
        curves = [ChartLine(name=run.name, points=run.curve(name), colour=index) for index, run in enumerate(runs)]
        if figure.only_if_it_varies and not any(len({y for _, y in curve.points}) > 1 for curve in curves):
            continue
        if name == "lm_loss":
            curves += [
                ChartLine(name=f"{run.name}, validation", points=run.evaluated("valid"), colour=index, marked=True)
                for index, run in enumerate(runs)
            ]
        drawn.append(chart(figure.title, curves, logarithmic=figure.logarithmic, from_zero=figure.from_zero))
    return drawn


def _about(run: RunData, *, heading: bool) -> str:
    recipe = f"<pre>{escape(run.recipe)}</pre>" if run.recipe else ""
    events = [(f"{line['iteration']:,}", str(line.get("text", ""))) for line in run.events]
    environment = {key: value for key, value in run.environment.items() if key != "kernels"}
    parts = [
        f"<h2>{escape(run.name)}</h2>" if heading else "",
        section("Where a step goes", _profile(run), unfolded=True),
        section("Events", table(["after iteration", ""], events), unfolded=True),
        section("Tasks", _tasks(run), unfolded=True),
        section("Kernels", _kernels(run), unfolded=not heading),
        section("Environment", table(["", ""], _flat(environment))),
        section("Recipe", recipe),
    ]
    return "".join(parts)


def _profile(run: RunData) -> str:
    if not run.profile:
        return ""
    first = run.profile[0]
    there = [phase for phase in PHASES if any(phase in summary.phases for summary in run.profile)]
    names = [(f"c{PHASES.index(phase)}", phase_name(phase)) for phase in there]
    rows = [
        (part.phase, part.part, f"{part.seconds:.4f}", f"{part.seconds / first.seconds:.1%}") for part in first.parts
    ]
    return "".join(
        [
            paragraph([UNSEEN] if any(summary.device_unseen for summary in run.profile) else []),
            legend(names),
            bars("", [(f"{summary.title}; {summary.counts}", _shares(summary)) for summary in run.profile]),
            section(f"Parts, rank {first.rank}", table(["phase", "part", "seconds a step", "share"], rows)),
        ]
    )


def _shares(summary: StepSummary) -> list[Share]:
    shares = []
    for phase, seconds in summary.phases.items():
        colour = PHASES.index(phase)
        parts = [part for part in summary.parts if part.phase == phase]
        # "mlp.linear_fc1: reference (pretrain)" is "linear_fc1: reference" in short.
        pieces = [Share(each.part, each.part.partition(" (")[0].split(".")[-1], each.seconds, colour) for each in parts]
        shares.append(Share(phase_name(phase), phase, seconds, colour, pieces))
    return shares


def _summary(runs: Sequence[RunData]) -> str:
    columns = [_summary_of(run) for run in runs]
    rows = [(key, *(column[key] for column in columns)) for key in columns[0]]
    kept = [row for row in rows if any(cell != "-" for cell in row[1:])]
    return table(["", *(run.name for run in runs)], kept, style="numbers")


def _differences(runs: Sequence[RunData]) -> str:
    settings = [run.settings() for run in runs]
    keys = sorted(set().union(*settings))
    rows = [(key, *(each.get(key, "-") for each in settings)) for key in keys]
    different = [row for row in rows if len(set(row[1:])) > 1]
    return table(["", *(run.name for run in runs)], different, style="numbers")


def _tasks(run: RunData) -> str:
    """Return the results of tasks of lm-evaluation-harness, the latest where one was evaluated twice."""
    latest = {
        (line["task"], line["iteration"], line.get("num_fewshot"), line.get("limit")): line.get("metrics", {})
        for line in run.tasks
    }
    rows = [
        (
            task,
            f"{iteration:,}",
            *(_count(each) for each in (shots, limit)),
            name,
            _cell(value, ".4f"),
            _cell(error, ".4f"),
        )
        for (task, iteration, shots, limit), numbers in latest.items()
        for name, value, error in metrics.with_errors(numbers)
    ]
    return table(["task", "after iteration", "few-shot", "limit", "metric", "value", "standard error"], rows)


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _kernels(run: RunData) -> str:
    rows = run.environment.get("kernels", {}).get("rows", [])
    cells = []
    for row in rows:
        kind = f" ({row['kind']})" if row.get("kind") and row["kind"] != row["kernel"] else ""
        others = row.get("rejected", row.get("passed_over", []))  # older runs say passed_over
        rejected = "; ".join(f"{other['kernel']} of {other['provider']}: {other['why']}" for other in others)
        cells.append((row["operation"], f"{row['kernel']}{kind}", row["provider"], rejected))
    return table(["operation", "kernel", "provider", "not taken"], cells)


def _summary_of(run: RunData) -> dict[str, str]:
    last = run.train[-1] if run.train else {}
    best = min((y for _, y in run.evaluated("valid") if y is not None), default=None)
    memory = max((peak for _, peak in run.curve("memory_peak_bytes") if peak), default=None)
    return {
        "backend": str(run.environment.get("backend", {}).get("name", "-")),
        "devices": str(len(run.environment["devices"])) if run.environment.get("devices") else "-",
        "iterations": f"{last.get('iteration', 0):,}",
        "tokens": f"{last.get('consumed_tokens', 0):,}",
        "training loss, last": _cell(_last(run.curve("lm_loss")), ".4f"),
        "validation loss, last": _cell(_last(run.evaluated("valid")), ".4f"),
        "validation loss, best": _cell(best, ".4f"),
        "validation perplexity, last": _cell(_ppl(run, "valid"), ".4g"),
        "test loss": _cell(_last(run.evaluated("test")), ".4f"),
        "test perplexity": _cell(_ppl(run, "test"), ".4g"),
        "tokens/s/device, median": _cell(_median(run.curve("tokens_per_second_per_device")), ",.0f"),
        "TFLOP/s/device, median": _cell(_median(run.curve("tflops_per_device")), ".3g"),
        "MFU, median": _cell(_median(run.curve("mfu")), ".1%"),
        "peak memory": "-" if memory is None else f"{memory / 2**30:.2f} GiB",
        "training time": duration(_training_seconds(run)),
        "skipped iterations": f"{sum(count or 0 for _, count in run.curve('skipped_iterations'))}",
    }


def _training_seconds(run: RunData) -> float:
    seconds, before = 0.0, 0.0
    for iteration, per_iteration in run.curve("seconds_per_iteration"):
        seconds += (iteration - before) * (per_iteration or 0)
        before = iteration
    return seconds


def _last(points: Sequence[Point]) -> float | None:
    return next((y for _, y in reversed(points) if y is not None), None)


def _median(points: Sequence[Point]) -> float | None:
    known = [y for _, y in points if y is not None]
    return median(known) if known else None


def _ppl(run: RunData, split: str) -> float | None:
    return next((line.get("ppl") for line in reversed(run.evaluations) if line.get("split") == split), None)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else number(value, form)


def _flat(value: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, dict):
            rows += _flat(item, f"{prefix}{key}.")
        else:
            text = ", ".join(map(str, item)) if isinstance(item, list) else "-" if item is None else str(item)
            rows.append((f"{prefix}{key}", text))
    return rows
