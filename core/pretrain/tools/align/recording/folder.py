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


WEIGHTS = "weights"
"""Folder of the weights and moments before the first step and after each."""


def weights_folder(folder: Path, step: int) -> Path:
    """Return the folder of the state after a step; 0 is before the first."""
    return folder / WEIGHTS / f"step{step}"


RANK = "rank.json"
"""File of a rank that is written last, and lists the others."""


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
    """Place of a rank in the layout, and sizes that its tensors depend on.

    Attributes:
        rank: of all ranks.
        tensor_rank: of the tensor-parallel ranks.
        tensor_size: number of those.
        data_rank: of the data-parallel ranks.
        data_size: number of those.
        pipeline_rank: its stage.
        seq_length: of a whole sequence.
        is_gated: linear_fc1 has the rows of a gate and of an up projection (swiglu).
    """

    rank: int
    tensor_rank: int
    tensor_size: int
    data_rank: int
    data_size: int
    pipeline_rank: int
    seq_length: int
    is_gated: bool


@dataclass(frozen=True, slots=True, order=True)
class ModulePlace:
    """Place of a module in the model, whatever the layout.

    Attributes:
        position: 0 before the layers, the layer's number from 1 over all stages, or the number of layers + 1 after
            them.
        module: its path within that: "input_layernorm", "mlp.linear_fc1", "output_layer"; "" for the layer itself.
    """

    position: int
    module: str

    def title(self, layers: int) -> str:
        """Return the place in words, for a model of so many layers."""
        if 0 < self.position <= layers:
            return f"layer {self.position} of {layers}"
        return "before the layers" if self.position == 0 else "after the layers"


@dataclass(slots=True)
class Visit:
    """One execution of a module.

    Attributes:
        place: of the module.
        micro_batch: of this rank in the step, from 0.
        batch_first: whether its tensors are [b, s, ...], not [s, b, ...].
        again: whether its activations are computed a second time, for the backward pass.
        calls: of each operation so far.
    """

    place: ModulePlace
    micro_batch: int
    batch_first: bool
    again: bool
    calls: Counter[str] = field(default_factory=Counter)
