"""Files of a recording: manifest, weights, sizes; and places of ranks and modules."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import orjson
import torch

import pretrain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pretrain.plugins.negotiation.kernel_table import KernelTable
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout

WEIGHTS = "weights"  # folder of the weights and moments before the first step and after each
RANK = "rank.json"  # file of a rank that is written last, and lists the others
FILE = "recording.json"
FORMAT = 1
KEYS = ("format", "pretrain", "torch", "source", "recipe", "layout", "vocab_size", "positions", "kernels")
"""Keys of the file, all of which a recording has."""


def write_manifest(
    folder: Path, recipe: Recipe, table: KernelTable, layout: Layout, vocab_size: int, *, positions: int
) -> None:
    """Write what is the same on all ranks."""
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


def weights_folder(folder: Path, step: int) -> Path:
    """Return the folder of the state after a step; 0 is before the first."""
    return folder / WEIGHTS / f"step{step}"


def file_sizes(folder: Path, below: Path) -> dict[str, int]:
    """Return the size of each file below a folder of a recording, in bytes, by its path in the recording."""
    return {
        str(file.relative_to(folder)): file.stat().st_size
        for file in sorted(below.rglob("*"))
        if file.is_file() and file.name != RANK
    }


def damaged_file(folder: Path, sizes: Iterable[Mapping[str, int]]) -> str:
    """Return the first listed file that is missing or has another size; "" if there is none."""
    for listed in sizes:
        for name, size in listed.items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != size:
                return name
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Place of a rank in the layout, and sizes that its tensors depend on."""

    rank: int
    tensor_rank: int
    tensor_size: int
    data_rank: int
    data_size: int
    pipeline_rank: int
    seq_length: int
    is_gated: bool  # linear_fc1 has the rows of a gate and of an up projection (swiglu)


@dataclass(frozen=True, slots=True, order=True)
class ModulePlace:
    """Place of a module in the model, whatever the layout."""

    position: int  # 0 before the layers, the layer's number from 1 over all stages, or one more than those after them
    module: str  # its path within that: "input_layernorm", "mlp.linear_fc1", "output_layer"; "" for the layer itself

    def title(self, layers: int) -> str:
        """Return the place in words, for a model of so many layers."""
        if 0 < self.position <= layers:
            return f"layer {self.position} of {layers}"
        return "before the layers" if self.position == 0 else "after the layers"


@dataclass(slots=True)
class Visit:
    """One execution of a module."""

    place: ModulePlace
    micro_batch: int  # of this rank in the step, from 0
    batch_first: bool  # whether its tensors are [b, s, ...], not [s, b, ...]
    again: bool  # whether its activations are computed a second time, for the backward pass
    calls: Counter[str] = field(default_factory=Counter)
