"""Description of a recording, which its first rank writes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson
import torch

import pretrain

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.plugins.negotiation.kernel_table import KernelTable
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout

FILE = "recording.json"
FORMAT = 1
KEYS = ("format", "pretrain", "torch", "source", "recipe", "layout", "vocab_size", "positions", "kernels")
"""Keys of the file, all of which a recording has."""


def write_manifest(
    folder: Path, recipe: Recipe, table: KernelTable, layout: Layout, vocab_size: int, *, positions: int
) -> None:
    """Write what is the same on all ranks.

    Args:
        folder: of the recording.
        recipe: that is recorded.
        table: the chosen kernels.
        layout: sizes of the parallel groups.
        vocab_size: entries of the tokenizer, before padding.
        positions: of each sequence that are recorded at the most.
    """
    manifest = {
        "format": FORMAT,
        "pretrain": pretrain.__version__,
        "torch": torch.__version__,
        "source": str(recipe.source),
        "recipe": recipe.model_dump(mode="json"),
        "layout": asdict(layout),
        "vocab_size": vocab_size,
        "positions": positions,
        "kernels": table.to_json(),
    }
    (folder / FILE).write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
