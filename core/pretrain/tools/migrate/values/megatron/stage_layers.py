"""Layers of pipeline stages, where the source gives them one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.values.megatron.layout import COUNTED, virtual_pipeline_model_parallel_size
from pretrain.tools.migrate.values.megatron.layout_text import LAYOUT, parts_of_layout, pipeline_stages
from pretrain.tools.migrate.values.megatron.stated_place import place_of
from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings


def pipeline_layers(settings: Settings) -> Worked | None:
    """Return the layers of every stage or chunk; None if all have as many.

    Raises:
        MigrateError: the layout is not one of Megatron-LM, or the layers cannot be divided.
    """
    parts = parts_of_layout(settings)
    if parts is not None:
        has_prediction = any("m" in part for part in parts)
        lost = ((LAYOUT, "layers of multi-token prediction are left out"),) if has_prediction else ()
        return Worked([part.count("t") for part in parts], (LAYOUT,), lost=lost)
    counted = [bool(settings.value(name)) for name in COUNTED]
    return _with_ends(settings, counted) if any(counted) else None


def _with_ends(settings: Settings, counted: list[bool]) -> Worked:
    """Return layers of which the embedding, or the loss, counts as one more."""
    chunks = virtual_pipeline_model_parallel_size(settings)
    parts = pipeline_stages(settings) * (1 if chunks is None else chunks.value or 1)
    total = settings.value("num_layers", 0) + sum(counted)
    if total % parts or parts < 2:
        place = place_of(settings, next(name for name, is_on in zip(COUNTED, counted, strict=True) if is_on))
        msg = (
            f"{place}: {total} layers, with what counts as one, are no multiple of {parts} stages.\nChange one of them."
        )
        raise MigrateError(msg)
    layers = [total // parts] * parts
    layers[0] -= counted[0]
    layers[-1] -= counted[1]
    return Worked(layers, tuple(name for name, is_on in zip(COUNTED, counted, strict=True) if is_on))
