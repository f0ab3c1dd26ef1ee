"""Section `model` of a recipe for a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.recipe.sections.model import ModelSection

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEFT_OUT = {"hidden_dropout", "attention_dropout"}
"""Not of the weights, but of the training."""


def recipe_section(model: ModelSection) -> Mapping[str, Any]:
    """Return the settings that differ from a recipe's defaults, in the order of the section's keys."""
    needed = {name: getattr(model, name) for name, field in ModelSection.model_fields.items() if field.is_required()}
    plain = ModelSection.model_validate(needed | {"activation": model.activation})
    given = model.model_dump(exclude=_LEFT_OUT)
    default = plain.model_dump() | {"activation": ModelSection.model_fields["activation"].default}
    return {name: value for name, value in given.items() if name in needed or value != default[name]}
