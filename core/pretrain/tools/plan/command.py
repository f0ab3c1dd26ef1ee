"""`pretrain plan`: memory and time of a training, before its devices are rented."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pretrain.cli.options import LocalPath, set_option
from pretrain.cli.words import backend_names
from pretrain.errors import PretrainError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.recipe import Recipe
    from pretrain.tools.plan.device import DeviceOptions, PlanDevice
    from pretrain.tools.plan.plan import Plan

GIGA, HOUR = 1e9, 3600.0
GIGABYTES = click.FloatRange(min=0, min_open=True)
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]*)", re.IGNORECASE)
_UNITS: Mapping[str, int] = {
    "": 1,
    "b": 1,
    **dict.fromkeys(("m", "mb", "mib"), 2**20),
    **dict.fromkeys(("g", "gb", "gib"), 2**30),
    **dict.fromkeys(("t", "tb", "tib"), 2**40),
}
LEAST = 2**20  # bytes below which a size without a unit was meant in GB
ALLOWED = "Allowed: 40GB, 40GiB, 32768MB, or bytes."


class MemorySize(click.ParamType[int]):
    """Memory of a device in bytes, from "40GB", "40GiB", "32768MB" or bytes."""

    # GB is read as GiB: an A100 with "80 GB" has 81920 MiB by nvidia-smi, an Ascend 910B3 with "64 GB" 65536 by
    # npu-smi.

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(value.strip())
        unit = found and _UNITS.get(found["unit"].lower())
        if not found or not unit:
            self.fail(f"'{value}' is not a memory size. {ALLOWED}", param, ctx)
        size = int(float(found["number"]) * unit)
        if size < LEAST:
            hint = ALLOWED if found["unit"] or not size else f"Did you mean {value}GB?"
            self.fail(f"'{value}' is {size} bytes, less than any device has. {hint}", param, ctx)
        return size


@click.command(short_help="Show memory and time of a training before its devices are rented.")
@click.argument("recipe", type=LocalPath(), metavar="RECIPE")
@click.option(
    "--backend",
    metavar="NAME",
    help="The device plugin.  [default: the one that knows --device; without it cpu]",
    shell_complete=backend_names,
)
@click.option(
    "--device", "device_name", metavar="NAME", help="Product name of the device to plan for; it need not be present."
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of devices.  [default: the least that hold one replica]",
)
@click.option(
    "--memory",
    type=MemorySize(),
    metavar="SIZE",
    help="A device's memory, if not the datasheet's: 40GB, 32768MB, or bytes. GB is read as GiB.",
)
@click.option(
    "--network",
    "node_bandwidth",
    type=GIGABYTES,
    metavar="GB/S",
    help="Bandwidth of each device to other nodes, if not that of its maker's servers. A port of 200 Gb/s that two "
    "devices share is 12.5.",
)
@click.option(
    "--link",
    "link_bandwidth",
    type=GIGABYTES,
    metavar="GB/S",
    help="Bandwidth of each device inside its node, in one direction, if not the datasheet's.",
)
@click.option(
    "--devices-per-node",
    type=click.IntRange(min=1),
    metavar="N",
    help="Devices of a node, if not as many as in the maker's servers.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Entries of the tokenizer, before padding.  [default: counted in its files, if they are here]",
)
@click.option(
    "--measured",
    type=LocalPath(),
    metavar="RUN",
    help="Use the speed of this run on the same device instead of the assumed range.",
)
@click.option(
    "--storage",
    "storage_bandwidth",
    type=GIGABYTES,
    metavar="GB/S",
    help="Rate at which all ranks together write a checkpoint, or read it: shows what checkpoints cost.",
)
@click.option(
    "--mtbf",
    type=click.FloatRange(min=0, min_open=True),
    metavar="HOURS",
    help="Mean time between two failures of the whole run: shows the best save interval.",
)
@click.option(
    "--start",
    "start_seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="From a failure to the first step, without reading the checkpoint: shows the share of useful time.",
)
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--layers", is_flag=True, help="Also show a table by kind of module.")
@click.option(
    "--html", type=LocalPath(dir_okay=False), metavar="FILE", help="Also write a page that shows memory over the step."
)
@click.option("--search", "searches", is_flag=True, help="Search for the fastest layouts that fit instead.")
def command(
    *,
    recipe: Path,
    backend: str | None,
    device_name: str | None,
    devices: int | None,
    memory: int | None,
    node_bandwidth: float | None,
    link_bandwidth: float | None,
    devices_per_node: int | None,
    vocab_size: int | None,
    measured: Path | None,
    storage_bandwidth: float | None,
    mtbf: float | None,
    start_seconds: float | None,
    overrides: tuple[str, ...],
    as_json: bool,
    layers: bool,
    html: Path | None,
    searches: bool,
) -> None:
    """Show whether RECIPE fits into the memory of its devices, and how long it would train.

    The engine takes one step on tensors without values, for each pipeline stage that differs, with the kernels that
    the device would run. Needs no device, token files or tokenizer.

    pretrain plan recipes/gpt3.yml --device "NVIDIA A100-SXM4-80GB" --devices 64
    """
    # A mistake in the options or in the recipe is reported before torch is imported.
    from pretrain.recipe import load_recipe  # noqa: PLC0415

    of_run = (storage_bandwidth, mtbf, start_seconds)
    if searches:
        _require_no_view(layers=layers or html is not None, of_run=of_run != (None, None, None))
    if html is not None and not html.parent.is_dir():
        msg = f"--html {html}: folder {html.parent} does not exist.\nMake it, or give another file."
        raise click.UsageError(msg)
    loaded = load_recipe(recipe, overrides)
    size, notes = _vocab_size(loaded, vocab_size)
    from pretrain.tools.plan.device import DeviceOptions, find_device  # noqa: PLC0415  imports torch

    options = DeviceOptions(
        backend=backend,
        name=device_name,
        memory=memory,
        link_bandwidth=link_bandwidth and link_bandwidth * GIGA,
        node_bandwidth=node_bandwidth and node_bandwidth * GIGA,
        devices_per_node=devices_per_node,
    )
    ranks = devices or loaded.least_ranks
    device = find_device(loaded, options, ranks=ranks)
    notes = [*loaded.notices, *notes]
    if measured is not None:
        device, measured_notes = _calibrated(device, options, measured, vocab_size)
        notes += measured_notes
    if searches:
        _search(loaded, device, ranks, size, notes, as_json=as_json)
    else:
        plan = _plan(loaded, device, devices, size, notes)
        _show(_with_costs(plan, *of_run), html, as_json=as_json, layers=layers)


def _require_no_view(*, layers: bool, of_run: bool) -> None:
    if layers or of_run:
        options = "--layers and --html" if layers else "--storage, --mtbf and --start"
        msg = f"{options} describe one layout, but --search finds several.\nChoose a layout by --set first."
        raise click.UsageError(msg)


def _vocab_size(recipe: Recipe, given: int | None) -> tuple[int, list[str]]:
    from pretrain.data.tokenizers.load import expected_vocab_size  # noqa: PLC0415

    if given is not None:
        return given, []
    size, note = expected_vocab_size(recipe.tokenizer)
    return size, [f"{note}; --vocab-size sets another number"] if note else []


def _calibrated(
    device: PlanDevice, options: DeviceOptions, measured: Path, vocab_size: int | None
) -> tuple[PlanDevice, list[str]]:
    from pretrain.tools.plan.plan import calibrated, read_measured  # noqa: PLC0415

    run = read_measured(measured)
    size, notes = _vocab_size(run.recipe, vocab_size)
    return calibrated(device, options, run, size), [f"{measured}: {note}" for note in notes]


def _plan(recipe: Recipe, device: PlanDevice, devices: int | None, vocab_size: int, notes: list[str]) -> Plan:
    from pretrain.tools.plan.plan import make_plan  # noqa: PLC0415
    from pretrain.tools.plan.search.search import enough_devices  # noqa: PLC0415

    plan = make_plan(recipe, device, devices=devices, vocab_size=vocab_size)
    enough = None
    if devices is None and plan.fits is False and not device.is_shared:
        enough = enough_devices(recipe, device, vocab_size, _say)
    return replace(plan, notices=[*notes, *plan.notices], enough_devices=enough)


def _with_costs(plan: Plan, storage: float | None, mtbf: float | None, start_seconds: float | None) -> Plan:
    """Return the plan with what a run costs besides its steps, if an option says something of that."""
    from pretrain.tools.plan.run_costs import RunCostOptions, run_costs  # noqa: PLC0415

    given = RunCostOptions(
        storage_bandwidth=storage and storage * GIGA, mtbf_seconds=mtbf and mtbf * HOUR, start_seconds=start_seconds
    )
    if not given.are_given:
        return plan
    ranks = plan.layout.world_size
    return replace(plan, costs=run_costs(plan.recipe, plan.vocab_size, ranks, plan.time, given=given))


def _show(plan: Plan, html: Path | None, *, as_json: bool, layers: bool) -> None:
    from pretrain.report.html import write_page  # noqa: PLC0415
    from pretrain.tools.plan.plan_views import module_text, page, plan_text  # noqa: PLC0415
    from pretrain.tools.plan.wording import plan_json  # noqa: PLC0415

    click.echo(json.dumps(plan_json(plan), indent=2) if as_json else plan_text(plan))
    if layers and not as_json:
        click.echo(f"\n{module_text(plan)}")
    if html is not None:
        write_page(page(plan), html, PretrainError)
        click.echo(f"\npage: {html}", err=as_json)


def _search(
    recipe: Recipe, device: PlanDevice, ranks: int, vocab_size: int, notes: list[str], *, as_json: bool
) -> None:
    from pretrain.tools.plan.plan import without_files  # noqa: PLC0415
    from pretrain.tools.plan.search.search import search, search_text, to_json  # noqa: PLC0415

    recipe, planned = without_files(recipe)
    notes += planned
    result = search(recipe, device, ranks, vocab_size, _say)
    if as_json:
        click.echo(json.dumps({**to_json(result), "notices": notes}, indent=2))
        return
    click.echo("\n".join([*notes, search_text(result)]))


def _say(text: str) -> None:
    click.echo(text, err=True)  # stdout stays clean
