"""Writes a rank's tensors, and hashes of the samples that it reads."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
from safetensors.torch import save_file

from pretrain.tools.align.recording.folder import RANK, WEIGHTS, file_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from pretrain.engine.protocol import Batch
    from pretrain.tools.align.recording.folder import ModulePlace, RankPlace, Visit


_MOST_BYTES = 1 << 28
"""Bytes of tensors in host memory before they are written to a file."""


class Sink:
    """Writer of a rank's tensors: files of tensors, and a file with a line about each of them."""

    def __init__(self, folder: Path, place: RankPlace, positions: Tensor) -> None:
        """Make the rank's folder.

        Args:
            folder: of the recording, which exists.
            place: of this rank.
            positions: of the sequence that are recorded, int64, ascending.
        """
        self._folder = folder / f"rank{place.rank}"
        self._folder.mkdir()
        self._place, self._positions = place, positions
        self._lines: list[dict[str, Any]] = []
        self._held: dict[str, Tensor] = {}
        self._bytes = self._files = self._ticks = self.step = 0
        self.units: list[dict[str, Any]] = []

    def add(self, visit: Visit, operation: str, call: int, name: str, tensor: Tensor, *, is_backward: bool) -> None:
        """Take a tensor's values at the recorded positions.

        Args:
            visit: of the module in which it is computed.
            operation: whose call gave it; "" for the module itself.
            call: number of the operation's call in the visit.
            name: "output", or the input whose gradient it is.
            tensor: [s, b, ...] or, where the visit says so, [b, s, ...]; or this rank's part of it.
            is_backward: of which pass.
        """
        if visit.batch_first:
            tensor = tensor.transpose(0, 1)
        divided = division(visit.place, operation, name, self._place.tensor_size, self._place.is_gated)
        begin, rows = self._rows(tensor.shape[0])
        taken = tensor.detach().index_select(0, rows.to(tensor.device)).to("cpu", copy=True).contiguous()
        self._lines.append(
            {
                "step": self.step,
                "backward": is_backward,
                **asdict(visit.place),
                "operation": operation,
                "call": call,
                "name": name,
                "micro_batch": visit.micro_batch,
                "division": divided,
                "rows": [begin, len(rows)],
                "order": self.tick(),
                "file": self._files,
                "key": str(len(self._lines)),
            }
        )
        self._held[str(len(self._lines) - 1)] = taken
        self._bytes += taken.nbytes
        if self._bytes > _MOST_BYTES:
            self._write()

    def tick(self) -> int:
        """Return the number of what comes next in the order of computation of this rank."""
        self._ticks += 1
        return self._ticks

    def unit(self, visit: Visit, gradient: Tensor) -> None:
        """Take the gradient of the tokens' losses, [s, b]: its sum over the step is what all gradients scale with."""
        self.units.append(
            {"step": self.step, "micro_batch": visit.micro_batch, "unit": gradient.cpu().double().sum().item()}
        )

    def finish(self, other: dict[str, Any]) -> None:
        """Write what is left, and what else is known of this rank as JSON values; all weights are written."""
        self._write()
        (self._folder / "points.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in self._lines))
        files = file_sizes(self._folder.parent, self._folder)
        if self._place.rank == 0:
            files |= file_sizes(self._folder.parent, self._folder.parent / WEIGHTS)
        known = {**asdict(self._place), "units": self.units, "files": files, **other}
        (self._folder / RANK).write_bytes(orjson.dumps(known))

    def _rows(self, length: int) -> tuple[int, Tensor]:
        """Return the number of the first recorded position that a tensor has, and the places of all of them in it."""
        place = self._place
        if length == place.seq_length:
            return 0, self._positions
        first = length * place.tensor_rank  # sequence parallel
        inside = (self._positions >= first) & (self._positions < first + length)
        return int((self._positions < first).sum()), self._positions[inside] - first

    def _write(self) -> None:
        if self._held:
            save_file(self._held, self._folder / f"tensors{self._files}.safetensors")
            self._files += 1
        self._held, self._bytes = {}, 0


SAME, PARTIAL = "same", "partial"
"""Every rank has it whole, or has a term of the sum that it is."""

SPLIT_HEADS, SPLIT_LAST, SPLIT_GATED = "heads", "last", "gated"
"""Ranks have neighbouring parts: of dimension 2, of the last one, or of both halves of the last one."""

_ROW_PARALLEL = ("linear_proj", "linear_fc2")


def division(place: ModulePlace, operation: str, name: str, ranks: int, is_gated: bool) -> str:
    """Return how a tensor is divided among the tensor-parallel ranks.

    Args:
        place: of the module.
        operation: whose call gave it; "" for the module itself.
        name: "output", or the input whose gradient it is.
        ranks: their number.
        is_gated: linear_fc1 has the rows of a gate and of an up projection.
    """
    if ranks == 1 or operation in {"", "norm", "bias_dropout_add"}:
        return SAME
    if operation == "linear":
        return _of_linear(place.module.rpartition(".")[2], name, is_gated)
    if operation == "activation" and name != "output" and is_gated:
        return SPLIT_GATED
    if operation == "rotary" or (operation == "attention" and name != "output"):
        return SPLIT_HEADS
    return SAME if operation == "cross_entropy" and name == "output" else SPLIT_LAST


def _of_linear(module: str, name: str, is_gated: bool) -> str:
    if module in _ROW_PARALLEL:
        return PARTIAL if name == "output" else SPLIT_LAST
    if name != "output":
        return SAME
    return SPLIT_GATED if module == "linear_fc1" and is_gated else SPLIT_LAST


_KEYS = ("tokens", "labels", "loss_mask")


class Samples:
    """Micro-batches on their way to the engine, and a hash of each sample."""

    def __init__(self, batches: Iterator[Batch], data_rank: int, data_size: int) -> None:
        """Pass on the micro-batches of a data-parallel rank."""
        self._batches = batches
        self._data_rank, self._data_size = data_rank, data_size
        self._micro_batch = 0
        self.digests: dict[str, str] = {}
        self.step = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        count = len(_tensor(batch, "tokens"))
        first = (self._micro_batch * self._data_size + self._data_rank) * count
        for number in range(count):
            self.digests[f"{self.step}.{first + number}"] = _digest(batch, number)
        self._micro_batch += 1
        return batch

    def begin_step(self, step: int) -> None:
        """Count samples from 0 again."""
        self.step, self._micro_batch = step, 0


def _digest(batch: Mapping[str, Tensor | None], number: int) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for key in _KEYS:
        digest.update(_tensor(batch, key)[number].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _tensor(batch: Mapping[str, Tensor | None], key: str) -> Tensor:
    tensor = batch[key]
    if tensor is None:
        msg = f"a micro-batch without {key}"
        raise TypeError(msg)
    return tensor
