"""Files of a recording, written by each rank, and places of ranks and modules."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import orjson
import torch
from safetensors.torch import save_file

import pretrain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt
    from torch import Tensor

    from pretrain.data.samples.sequence_pieces import ContextRank
    from pretrain.engine.protocol import Batch
    from pretrain.plugins.negotiation.kernel_table import KernelTable
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout

WEIGHTS = "weights"  # folder of the weights and moments before the first step and after each
RANK = "rank.json"  # file of a rank that is written last, and lists the others
FILE = "recording.json"
FORMAT = 2
MODULUS = 1 << 64
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
    context: ContextRank
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


_MOST_BYTES = 1 << 28  # bytes of tensors in host memory before they are written to a file


class Sink:
    """Writer of a rank's tensors: files of tensors, and a file with a line about each of them."""

    def __init__(self, folder: Path, place: RankPlace, positions: Tensor) -> None:
        self._folder = folder / f"rank{place.rank}"
        self._folder.mkdir()
        self._place, self._places = place, recorded_places(place.context, place.seq_length, positions)
        self._lines: list[dict[str, Any]] = []
        self._held: dict[str, Tensor] = {}
        self._bytes = self._files = self._ticks = self.step = 0
        self.units: list[dict[str, Any]] = []

    def add(self, visit: Visit, operation: str, call: int, name: str, tensor: Tensor, *, is_backward: bool) -> None:
        """Take a tensor's values at the recorded positions; it is [s, b, ...], or this rank's part of it.

        Under context parallelism a call of attention has one of the rank's two pieces: both are one call here. Its keys
        are those of all ranks up to the piece's end, and have no place.
        """
        if visit.batch_first:
            tensor = tensor.transpose(0, 1)
        is_piece = operation == "attention" and self._place.context.size > 1
        if is_piece and name in {"key", "value"}:
            return
        part, call = (call, 0) if is_piece else (self._place.tensor_rank, call)
        begin, rows = self._rows(tensor.shape[0], part)
        taken = tensor.detach().index_select(0, rows.to(tensor.device)).to("cpu", copy=True).contiguous()
        key = str(len(self._lines))
        line = {"step": self.step, "backward": is_backward, **asdict(visit.place), "operation": operation, "call": call}
        line |= {"name": name, "micro_batch": visit.micro_batch, "rows": [begin, len(rows)], "order": self.tick()}
        line["division"] = division(visit.place, operation, name, self._place.tensor_size, self._place.is_gated)
        self._lines.append({**line, "file": self._files, "key": key})
        self._held[key] = taken
        self._bytes += taken.nbytes
        if self._bytes > _MOST_BYTES:
            self._write()

    def tick(self) -> int:
        """Return the number of what comes next in the order of computation of this rank."""
        self._ticks += 1
        return self._ticks

    def unit(self, visit: Visit, gradient: Tensor) -> None:
        """Take the gradient of the tokens' losses, [s, b]: its sum over the step is what all gradients scale with."""
        unit = gradient.cpu().double().sum().item()
        self.units.append({"step": self.step, "micro_batch": visit.micro_batch, "unit": unit})

    def finish(self, other: dict[str, Any]) -> None:
        """Write what is left, and what else is known of this rank as JSON values; all weights are written."""
        self._write()
        (self._folder / "points.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in self._lines))
        files = file_sizes(self._folder.parent, self._folder)
        if self._place.rank == 0:
            files |= file_sizes(self._folder.parent, self._folder.parent / WEIGHTS)
        known = {**asdict(self._place), "units": self.units, "files": files, **other}
        (self._folder / RANK).write_bytes(orjson.dumps(known))

    def _rows(self, length: int, part: int) -> tuple[int, Tensor]:
        """Return the number of the first recorded place that a tensor has, and where in it all of them are.

        It has all places of this rank, or so many of the `part`th of them: sequence parallelism, or a piece.
        """
        places = self._places
        if length == self._place.seq_length // self._place.context.size:
            return 0, places
        first = length * part
        inside = (places >= first) & (places < first + length)
        return int((places < first).sum()), places[inside] - first

    def _write(self) -> None:
        if self._held:
            save_file(self._held, self._folder / f"tensors{self._files}.safetensors")
            self._files += 1
        self._held, self._bytes = {}, 0


def recorded_places(context: ContextRank, length: int, positions: Tensor) -> Tensor:
    """Return where the recorded positions are among those that a rank has of a sequence, in its order."""
    return torch.isin(context.positions(length), positions).nonzero().flatten()


SAME, PARTIAL = "same", "partial"  # every rank has it whole, or has a term of the sum that it is
SPLIT_HEADS, SPLIT_LAST, SPLIT_GATED = "heads", "last", "gated"
"""Ranks have neighbouring parts: of dimension 2, of the last one, or of both halves of the last one."""
_ROW_PARALLEL = ("linear_proj", "linear_fc2")
ROLES = {
    "q_layernorm": "head",
    "k_layernorm": "head",
    "output_layer": "output",
    "router": "router",
    "experts": "expert",
    "shared_experts": "shared",
}
"""Module -> the role of its kernel."""


def division(place: ModulePlace, operation: str, name: str, ranks: int, is_gated: bool) -> str:
    """Return how a tensor is divided among the tensor-parallel ranks."""
    module, is_output = place.module.rpartition(".")[2], name == "output"
    role = ROLES.get(module)
    # A router is whole on every rank, which routes its own tokens.
    if ranks == 1 or operation in {"", "bias_dropout_add"} or role == "router" or (operation == "norm" and not role):
        return SAME
    if operation == "linear" and module in _ROW_PARALLEL:
        return PARTIAL if is_output else SPLIT_LAST
    if operation == "linear" and not is_output:
        return SAME
    has_halves = (operation == "linear" and module == "linear_fc1") or (operation == "activation" and not is_output)
    if is_gated and has_halves:
        return SPLIT_GATED
    if operation in {"norm", "rotary"} or (operation == "attention" and not is_output):
        return SPLIT_HEADS
    return SAME if operation == "cross_entropy" and is_output else SPLIT_LAST


class Samples:
    """Micro-batches on their way to the engine, and a hash of what this rank has of each sample."""

    def __init__(self, batches: Iterator[Batch], place: RankPlace) -> None:
        self._batches, self._place = batches, place
        self._positions = place.context.positions(place.seq_length)
        self._micro_batch = 0
        self.digests: dict[str, int] = {}
        self.step = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        tensors = [cast("Tensor", batch[key]) for key in ("tokens", "labels", "loss_mask")]
        count = len(tensors[0])
        first = (self._micro_batch * self._place.data_size + self._place.data_rank) * count
        for number in range(count):
            columns = (self._positions, *(each[number] for each in tensors))
            rows = np.stack([column.double().numpy() for column in columns], axis=1)
            self.digests[f"{self.step}.{first + number}"] = sum_of_hashes(rows)
        self._micro_batch += 1
        return batch

    def begin_step(self, step: int) -> None:
        """Count samples from 0 again."""
        self.step, self._micro_batch = step, 0


def sum_of_hashes(rows: npt.NDArray[np.float64]) -> int:
    """Return the sum of the rows' hashes, modulo 2^64: those of parts, in any order, add up to that of the whole."""
    return sum(int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest()) for row in rows) % MODULUS
