"""Render the page: one file, without network access and scripts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from pretrain.atomic_files import replacing
from pretrain.errors import RunError
from pretrain.report.metric_table import figures
from pretrain.report.page import html_tables
from pretrain.report.page.chart import COLOURS, Curve, chart
from pretrain.report.page.frame import framed, section
from pretrain.report.page.run_data import read_runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pretrain.report.page.run_data import RunData


def write_report(run_dirs: Sequence[Path], output: Path) -> None:
    """Write one HTML page about one or several runs, atomically.

    Raises:
        RunError: a run directory cannot be read, or the page cannot be written.
    """
    page = render(read_runs(run_dirs))
    with replacing(output, error=RunError) as stream:
        stream.write(page.encode())


def render(runs: Sequence[RunData]) -> str:
    """Return the page."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    main = [
        f"<h1>{escape(title)}</h1>",
        _legend(runs) if len(runs) > 1 else "",
        html_tables.summary(runs),
        f'<div class="charts">{"".join(_charts(runs))}</div>',
        section("Recipes differ in", html_tables.differences(runs), unfolded=True),
        *(_about(run, heading=len(runs) > 1) for run in runs),
    ]
    return framed(title, "".join(main))


def _charts(runs: Sequence[RunData]) -> list[str]:
    def curves(key: str) -> list[Curve]:
        return [Curve(name=run.name, points=run.curve(key), colour=index) for index, run in enumerate(runs)]

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


def _validation(runs: Sequence[RunData]) -> list[Curve]:
    return [
        Curve(name=f"{run.name}, validation", points=run.evaluated("valid"), colour=index, marked=True)
        for index, run in enumerate(runs)
    ]


def _varies(runs: Sequence[RunData], key: str) -> bool:
    return any(len({value for _, value in run.curve(key)}) > 1 for run in runs)


def _legend(runs: Sequence[RunData]) -> str:
    items = (f'<li class="c{index % COLOURS}">{escape(run.name)}</li>' for index, run in enumerate(runs))
    return f'<ul class="legend">{"".join(items)}</ul>'


def _about(run: RunData, *, heading: bool) -> str:
    recipe = f"<pre>{escape(run.recipe)}</pre>" if run.recipe else ""
    parts = [
        f"<h2>{escape(run.name)}</h2>" if heading else "",
        section("Events", html_tables.events(run), unfolded=True),
        section("Kernels", html_tables.kernels(run), unfolded=not heading),
        section("Environment", html_tables.environment(run)),
        section("Recipe", recipe),
    ]
    return "".join(parts)
