"""Words for a shell that completes the value of an option."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

RECIPE_KEYS = Path(__file__).with_name("recipe_keys.txt")
"""Keys of a recipe with descriptions. docs/generate/recipes_page.py writes it: to import the schema takes too long."""


def override_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return what may follow in --set SECTION.KEY=VALUE: a section, or in one its keys."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415  only where a shell completes

    rows = [line.split("\t") for line in RECIPE_KEYS.read_text(encoding="utf-8").splitlines()]
    return [
        CompletionItem(name, help=description)
        for name, description in rows  # "model.", "model.num_layers="
        if name.startswith(incomplete) and name != incomplete and "." not in name[len(incomplete) : -1]
    ]


def key_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return the same for a section or a key alone."""
    found = override_names(context, parameter, incomplete)
    for item in found:
        item.value = item.value.removesuffix("=")
    return found


def backend_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return the installed backends."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415  as above

    from pretrain.distributions import Role, registered  # noqa: PLC0415
    from pretrain.plugins import BACKENDS  # noqa: PLC0415

    installed = registered(BACKENDS, Role.BACKEND)
    return [CompletionItem(each.name, help=each.provider) for each in installed if each.name.startswith(incomplete)]
