"""`pretrain explain`: the kernel of each operation, and why the others are not taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pretrain.cli.options import LocalPath
from pretrain.errors import BackendError, KernelError

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe


@click.command(name="explain")
@click.argument("recipe", type=LocalPath())
@click.option("--backend", metavar="NAME", default="cpu", show_default=True, help="The device plugin to ask.")
@click.option("--device", metavar="NAME", help="Show the kernels for this device, which need not be here.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a key of the recipe.")
def command(recipe: Path, backend: str, device: str | None, overrides: tuple[str, ...]) -> None:
    """Show which kernel each operation of RECIPE gets, and why the others do not.

    Nothing is built or started. The device need not be here if its plugin can answer without it, or knows the one that
    --device names ("NVIDIA A100-SXM4-80GB").
    """
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
