"""Settings of a model on the command line: what files do not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pretrain.errors import RecipeError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SECTION = "model."


def model_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --set to a command."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="model.KEY=VALUE",
        help="A setting of the model that the files do not tell, such as model.num_attention_heads=16.",
    )(function)


def parsed(settings: Sequence[str]) -> dict[str, Any]:
    """Return the values by the keys of a recipe's section `model`.

    Raises:
        RecipeError: one is no such key with a value.
    """
    import yaml  # noqa: PLC0415  kept out of --help

    from pretrain.recipe.sections.model import ModelSection  # noqa: PLC0415  it imports pydantic

    found = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        key = path.removeprefix(_SECTION)
        if not equals or not path.startswith(_SECTION) or key not in ModelSection.model_fields:
            msg = (
                f"--set {setting[:100]}: this is no key of section model with a value."
                f"{did_you_mean(key, ModelSection.model_fields)}\nWrite --set model.KEY=VALUE."
            )
            raise RecipeError(msg)
        try:
            found[key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            msg = f"--set {setting[:100]}: the value is not YAML.\nQuote it."
            raise RecipeError(msg) from error
    return found
