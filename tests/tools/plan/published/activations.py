"""Activations of a layer of the 22B model of Korthikanti et al.: `python -m tools.plan.published.activations`."""

from __future__ import annotations

import json

from pretrain.recipe import make_recipe
from pretrain.tools.plan.device import DeviceOptions, find_device
from pretrain.tools.plan.search.trace_pieces import PiecesKey, trace_pieces
from tools.plan.published import throughput

SOURCE = throughput.table()["readme-2022"]
ROW = SOURCE["rows"][0]
SBH = SOURCE["seq_length"] * ROW["hidden"]
QUADRATIC = 5 * ROW["heads"] * SOURCE["seq_length"] / ROW["hidden"]
"""5as/h: what softmax attention keeps of its scores."""
SETTINGS = ("kernels.attention=softmax", "model.hidden_dropout=0.1", "model.attention_dropout=0.1")


def kept() -> dict[str, tuple[float, float, float]]:
    """Return bytes / sbh that a layer keeps, those of its attention's core, and of its input.

    Keys are "1", "8" and "8 sequence", by the kind of parallelism.
    """
    recipe = make_recipe(throughput.recipe_of(SOURCE, ROW).model_dump(exclude_unset=True), SETTINGS)
    device = find_device(recipe, DeviceOptions(backend="cuda", name=SOURCE["device"]))
    keys = [PiecesKey(1, False), PiecesKey(8, False), PiecesKey(8, True)]
    pieces = trace_pieces(recipe, device, SOURCE["vocab_size"], keys)
    return {
        f"{key.tensor}{' sequence' if key.with_sequence else ''}": (
            each.layer.kept / SBH,
            each.layer.kept_by_attention / SBH,
            each.entering / SBH,
        )
        for key, each in pieces.items()
    }


if __name__ == "__main__":
    print(json.dumps(kept()))
