"""The page of one or several runs: `pretrain report`."""

from __future__ import annotations

from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any

from pretrain.errors import RunError
from pretrain.report.metric_table import figures
from pretrain.report.page.html import charts, framed, legend, section, table, write_page
from pretrain.report.page.run_data import read_runs
from pretrain.report.page.svg import COLOURS, ChartLine, chart
from pretrain.report.records import duration, number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pretrain.report.page.run_data import Point, RunData


def write_report(run_dirs: Sequence[Path], output: Path) -> None:
    """Write one HTML page about one or several runs, atomically."""
    write_page(page(read_runs(run_dirs)), output, RunError)


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
    def curves(key: str) -> list[ChartLine]:
        return [ChartLine(name=run.name, points=run.curve(key), colour=index) for index, run in enumerate(runs)]

    return [
        chart(
            figure.title,
            [*curves(name), *(_validation(runs) if name == "lm_loss" else [])],
            logarithmic=figure.logarithmic,
            from_zero=figure.from_zero,
        )
        for name, figure in figures()
        if _varies(runs, name) or not figure.only_if_it_varies
    ]


def _validation(runs: Sequence[RunData]) -> list[ChartLine]:
    return [
        ChartLine(name=f"{run.name}, validation", points=run.evaluated("valid"), colour=index, marked=True)
        for index, run in enumerate(runs)
    ]


def _varies(runs: Sequence[RunData], key: str) -> bool:
    return any(len({value for _, value in run.curve(key)}) > 1 for run in runs)


def _about(run: RunData, *, heading: bool) -> str:
    recipe = f"<pre>{escape(run.recipe)}</pre>" if run.recipe else ""
    parts = [
        f"<h2>{escape(run.name)}</h2>" if heading else "",
        section("Events", _events(run), unfolded=True),
        section("Kernels", _kernels(run), unfolded=not heading),
        section("Environment", _environment(run)),
        section("Recipe", recipe),
    ]
    return "".join(parts)


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


def _kernels(run: RunData) -> str:
    rows = run.environment.get("kernels", {}).get("rows", [])
    cells = [(row["operation"], _kernel(row), row["provider"], _rejected(row)) for row in rows]
    return table(["operation", "kernel", "provider", "not taken"], cells)


def _events(run: RunData) -> str:
    rows = [(f"{line['iteration']:,}", str(line.get("text", ""))) for line in run.events]
    return table(["after iteration", ""], rows)


def _environment(run: RunData) -> str:
    rest = {key: value for key, value in run.environment.items() if key != "kernels"}
    return table(["", ""], _flat(rest))


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


def _kernel(row: dict[str, Any]) -> str:
    return (
        f"{row['kernel']} ({row['kind']})" if row.get("kind") and row["kind"] != row["kernel"] else str(row["kernel"])
    )


def _rejected(row: dict[str, Any]) -> str:
    others = row.get("rejected", row.get("passed_over", []))  # older runs say passed_over
    return "; ".join(f"{other['kernel']} of {other['provider']}: {other['why']}" for other in others)


def _flat(value: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, dict):
            rows += _flat(item, f"{prefix}{key}.")
        else:
            text = ", ".join(map(str, item)) if isinstance(item, list) else "-" if item is None else str(item)
            rows.append((f"{prefix}{key}", text))
    return rows
