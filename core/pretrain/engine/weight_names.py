"""Names of weights for people: layers are counted from 1 over all stages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

_LAYER = re.compile(r"^(?:.*\.)?layers\.\d+(?=\.)")


def named_weights(models: Sequence[nn.Module]) -> list[tuple[str, Tensor]]:
    """Return the weights of this rank's model chunks by name, such as "mlp.linear_fc1.weight (layer 7 of 12)"."""
    named = []
    for model in models:
        modules = dict(model.named_modules())
        for name, weight in model.named_parameters():
            layer = _LAYER.match(name)
            named.append((_shown(name, modules[layer[0]]) if layer else name, weight.detach()))
    return named


def _shown(name: str, layer: nn.Module) -> str:
    rest = name.split("layers.", 1)[1].partition(".")[2]
    return f"{rest} (layer {layer.layer_number} of {layer.config.num_layers})"  # type: ignore[union-attr]
