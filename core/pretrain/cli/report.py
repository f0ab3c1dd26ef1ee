"""`pretrain report RUN [RUN ...]`: one HTML page about one or several runs."""

from __future__ import annotations

from pathlib import Path

import click

from pretrain.cli.options import LocalPath


@click.command()
@click.argument("runs", nargs=-1, required=True, type=LocalPath(), metavar="RUN [RUN ...]")
@click.option(
    "--output", type=LocalPath(), metavar="FILE", help="Default: RUN/report.html; for several runs report.html here."
)
def command(runs: tuple[Path, ...], output: Path | None) -> None:
    """Write one HTML page about run directories: curves, throughput, kernels, environment.

    The page is one file that needs no network. Several runs are drawn over each other.
    """
    from pretrain.report.run_page import write_report  # noqa: PLC0415  --help needs no report

    output = output or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    for empty in write_report(runs, output):
        click.echo(f"{empty} is left out: it has logged no iteration.", err=True)
    click.echo(f"report: {output}")
