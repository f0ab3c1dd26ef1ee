"""The command `pretrain doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.cli.options import LocalPath, RankCounts, backend_option, rank_options, set_option
from pretrain.cli.run import place_of_process, show_failure

if TYPE_CHECKING:
    from pretrain.launch.run_directory import Resume

EXAMPLE = Path(__file__).with_name("example.yml")
"""Recipe that is examined where the user gives none: GPT-2 345M in bf16, for nearly any number of ranks."""


@click.command(short_help="Check machines, devices, kernels and links before a training.")
@click.argument("recipe", type=LocalPath(), required=False)
@backend_option
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--run-dir", type=LocalPath(), metavar="DIR", help="Directory of the run.  [default: a new one below runs/]"
)
@click.option(
    "--resume",
    type=click.Choice(["run", "auto"]),
    is_flag=False,
    flag_value="run",
    metavar="[auto]",
    help="Check what `pretrain run --resume` would resume, in --run-dir.",
)
@rank_options
def command(
    *,
    recipe: Path | None,
    backend: str,
    overrides: tuple[str, ...],
    as_json: bool,
    run_dir: Path | None,
    resume: Resume | None,
    nproc: int | None,
    nnodes: int | None,
    rdzv: str | None,
    node_rank: int | None,
) -> int:
    """Check everything that RECIPE needs, on the ranks that would train it, in about two minutes.

    Each finding is one line: ok, look (may be intended, or costs speed) or wrong, with what to do. The exit code is 1
    if one is wrong, else 0. Without RECIPE the kernels of GPT-2 345M are tested, and no files are checked.
    """
    from pretrain.launch.job import EXAMINE, ForwardJob  # noqa: PLC0415
    from pretrain.launch.placement import make_placement  # noqa: PLC0415  --help needs none of these

    counts = RankCounts(nproc=nproc, nnodes=nnodes, rdzv=rdzv, node_rank=node_rank)
    world, nodes, nproc = place_of_process(counts)
    file = recipe or EXAMPLE
    if nproc is None and world is None:
        nproc = _without_device(file, overrides, backend, nodes.count)
    placement = make_placement(file, overrides, backend, nodes=nodes, nproc=nproc, world=world, needs_device=False)
    if placement.notice:
        click.echo(placement.notice, err=True)
    job = ForwardJob(
        recipe=str(file),
        overrides=overrides,
        backend=backend,
        function=EXAMINE,
        options={
            "is_example": recipe is None,
            "as_json": as_json,
            "run_dir": None if run_dir is None else str(run_dir),
            "resume": resume or "no",
        },
        reads_data=False,
        patience=180.0,  # a rank that dies at the start is named by the others after their own checks
    )
    if world is not None:
        return job.run(world).code
    from pretrain.launch.start import start  # noqa: PLC0415

    failure = start(placement, job)
    if failure is not None and failure.reported:  # the rank has printed a finding that is wrong
        return failure.exit_code
    return show_failure(failure)


def _without_device(file: Path, overrides: tuple[str, ...], backend: str, nodes: int) -> int | None:
    """Return the ranks of a node whose devices cannot be counted, as the finding will say; None where they can."""
    from pretrain.plugins.backend import Available  # noqa: PLC0415
    from pretrain.plugins.host.discovery import find_backend  # noqa: PLC0415
    from pretrain.plugins.host.manager import load_alone  # noqa: PLC0415
    from pretrain.plugins.host.members import availability  # noqa: PLC0415
    from pretrain.recipe import load_recipe  # noqa: PLC0415

    loaded = load_recipe(file, overrides)  # a mistake in the recipe is reported before the backend is imported
    if isinstance(availability(load_alone(find_backend(backend))), Available):
        return None
    return -(-loaded.least_ranks // nodes)
