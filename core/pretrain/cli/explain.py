"""`pretrain explain`: the kernel of each operation and why the others are not taken; the origin of each value."""

from __future__ import annotations

import json
import textwrap
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from pretrain.cli.options import LocalPath, backend_option, set_option
from pretrain.cli.words import key_names
from pretrain.errors import BackendError, KernelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.recipe.origins import KeyOrigin

_WIDTH = 100
_WIDEST_VALUE = 32


@click.command(name="explain")
@click.argument("recipe", type=LocalPath())
@click.argument("keys", nargs=-1, metavar="[SECTION[.KEY]]...", shell_complete=key_names)
@click.option("--values", is_flag=True, help="Show where each value comes from, instead of kernels.")
@backend_option
@click.option("--device", metavar="NAME", help="Show the kernels for this device, which need not be here.")
@set_option
@click.pass_context
def command(
    context: click.Context,
    *,
    recipe: Path,
    keys: tuple[str, ...],
    values: bool,
    backend: str,
    device: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Show which kernel each operation of RECIPE gets, and why the others do not; or where each value comes from.

    Nothing is built or started. The device need not be here if its plugin can answer without it, or knows the one that
    --device names ("NVIDIA A100-SXM4-80GB").

    --values shows every value with the line of the file, the --set, the DeepSpeed key or the keys that it comes from,
    and the defaults, and what was given but is not used. `pretrain explain RECIPE optimizer train.seed` shows a section
    and a key alone, also what has no value or no effect.
    """
    if values or keys:
        for name in ("backend", "device"):
            if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                msg = f"--{name} has no effect on the values of a recipe: leave it out."
                raise click.UsageError(msg, context)
        _show_values(recipe, overrides, keys)
    else:
        _show_kernels(recipe, overrides, backend, device)


def _show_kernels(recipe: Path, overrides: tuple[str, ...], backend: str, device: str | None) -> None:
    # A mistake in the recipe is reported before torch is imported.
    from pretrain.data.tokenizers.load import expected_vocab_size  # noqa: PLC0415
    from pretrain.plugins.host.manager import load  # noqa: PLC0415
    from pretrain.plugins.host.members import named  # noqa: PLC0415
    from pretrain.recipe import load_recipe  # noqa: PLC0415

    loaded = load_recipe(recipe, overrides)
    plugins = load(backend)
    for notice in plugins.notices:
        click.echo(notice)
    if device is not None:
        plugins = named(plugins, device)
    usable = _show_device(plugins, loaded)
    vocab_size, note = expected_vocab_size(loaded.tokenizer)
    if note:
        click.echo(note)
    try:
        table = _table(plugins, loaded, vocab_size, plugins.backend.device_name() if usable else "")
    except (BackendError, KernelError) as error:
        if usable:
            raise
        table = f"kernels: not known without the device: {error}"
    click.echo(f"\n{table}")


def _show_device(plugins: Plugins, recipe: Recipe) -> bool:
    """Print availability of the device and support for precision and compiled layers; return its availability."""
    from pretrain.model.requests import compute_dtype  # noqa: PLC0415
    from pretrain.plugins.backend import Unavailable  # noqa: PLC0415
    from pretrain.plugins.host.members import availability, require_compilation, require_dtype  # noqa: PLC0415

    answer = availability(plugins)
    if isinstance(answer, Unavailable):
        click.echo(f"device: not available: {' '.join(f'{answer.reason}. {answer.remedy}'.split())}")
        return False
    click.echo(f"device: available{answer.detail and f': {answer.detail}'}")
    try:
        require_dtype(plugins, compute_dtype(recipe))
    except BackendError as error:
        click.echo(f"precision: {error}")
    try:
        require_compilation(plugins, recipe)
    except BackendError as error:
        click.echo(f"compilation: {error}")
    return True


def _table(plugins: Plugins, recipe: Recipe, vocab_size: int, device_name: str) -> str:
    from pretrain.model.requests import collectives_request, kernel_requests  # noqa: PLC0415
    from pretrain.plugins.negotiation.choosing import choose  # noqa: PLC0415
    from pretrain.plugins.negotiation.kernels import table_of  # noqa: PLC0415
    from pretrain.report.plain_text import kernel_table_text  # noqa: PLC0415

    device = plugins.backend.device_type
    collectives = collectives_request(recipe, device, plugins.backend.process_group)
    requests = [collectives, *kernel_requests(recipe, device, vocab_size, device_name)]
    choices = choose(plugins, requests, recipe.kernels.chosen(), recipe.kernels.fallback)
    return kernel_table_text(table_of(plugins, [choice.row for choice in choices]), everything=True)


def _show_values(recipe: Path, overrides: tuple[str, ...], keys: tuple[str, ...]) -> None:
    from pretrain.recipe.load import load_with_document  # noqa: PLC0415  slow, and not needed for --help
    from pretrain.recipe.origins import left_out, origins_of  # noqa: PLC0415

    loaded, document = load_with_document(recipe, overrides)
    origins = origins_of(loaded, document)
    shown = origins if not keys else _chosen(origins, keys)
    for section, rows in groupby(shown, lambda row: row.path.partition(".")[0]):
        click.echo(section)
        for line in _lines_of(list(rows), collapse=not keys):
            click.echo(line)
    unused = [] if keys else left_out(document)
    if unused:
        click.echo("not used")
        for path, place, reason in unused:
            click.echo(_wrapped(f"{path}  {place}: {reason}"))


def _chosen(origins: list[KeyOrigin], keys: Sequence[str]) -> list[KeyOrigin]:
    """Return the rows of these keys and sections."""
    from pretrain.errors import did_you_mean  # noqa: PLC0415

    paths = [row.path for row in origins]
    for key in keys:
        if not any(_is_in(path, key) for path in paths):
            near = did_you_mean(key, [*paths, *(path.rpartition(".")[0] for path in paths)])
            msg = f"'{key}' is neither a section of a recipe nor a key, section.key.{near}"
            raise click.UsageError(msg)
    return [row for row in origins if any(_is_in(row.path, key) for key in keys)]


def _is_in(path: str, key: str) -> bool:
    return f"{path}.".startswith(f"{key}.") or key.startswith(f"{path}.")


def _lines_of(rows: list[KeyOrigin], *, collapse: bool) -> Iterator[str]:
    """Yield a line for each key; with `collapse` all defaults are one paragraph, and idle keys are left out."""
    from pretrain.recipe.origins import Kind  # noqa: PLC0415

    own = [row for row in rows if not collapse or row.kind in {Kind.GIVEN, Kind.DERIVED}]
    names = [_name(row) for row in own]
    values = ["" if row.kind is Kind.IDLE else _value(row.value) for row in own]
    widest = max((len(name) for name in names), default=0)
    wide = max((len(value) for value in values if len(value) <= _WIDEST_VALUE), default=0)
    for row, name, value in zip(own, names, values, strict=True):
        start = f"  {name:{widest}}  {value:{wide}}"
        if len(start) + 2 + len(row.origin) > _WIDTH and len(value) > wide:
            yield start if len(start) <= _WIDTH else f"{start[: _WIDTH - 3]}..."
            start = " " * (4 + widest + wide)
        yield f"{start}  {row.origin}"
    defaults = [f"{_name(row)} {_value(row.value)}" for row in rows if row.kind is Kind.DEFAULT]
    if collapse and defaults:
        yield click.style(_wrapped(f"default: {', '.join(defaults)}"), dim=True)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _name(row: KeyOrigin) -> str:
    return row.path.partition(".")[2]


def _value(value: Any) -> str:
    """Return a value as a recipe has it, on one line; a text is not quoted."""
    return value if isinstance(value, str) and value.isprintable() and value else json.dumps(value, ensure_ascii=False)
