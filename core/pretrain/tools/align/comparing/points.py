"""Reads recorded activations and their gradients, joined from the parts of all ranks."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import torch
from safetensors import safe_open

from pretrain.tools.align.recording.folder import ModulePlace
from pretrain.tools.align.recording.sink import PARTIAL, SAME, SPLIT_GATED, SPLIT_HEADS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from pretrain.tools.align.comparing.recording import Recording


Line = dict[str, Any]

_OF_VOCABULARY = {("output_layer", "linear", "output"), ("", "cross_entropy", "logits")}
"""Module, operation and name of tensors with a column for each token; their padding depends on the layout."""


@dataclass(frozen=True, slots=True)
class PointName:
    """Identity of a recorded tensor in both sides.

    Attributes:
        step: from 1.
        is_backward: of which pass.
        place: of the module.
        operation: whose call gave it; "" for the module itself.
        call: number of the operation's call.
        name: "output", or the input whose gradient it is.
    """

    step: int
    is_backward: bool
    place: ModulePlace
    operation: str
    call: int
    name: str


class Points:
    """The recorded tensors of one side."""

    def __init__(self, recording: Recording) -> None:
        """Read the list of tensors; the tensors themselves are read one by one."""
        self._recording = recording
        self._lines: dict[PointName, list[tuple[int, Line]]] = defaultdict(list)
        self._open: dict[str, Any] = {}
        self._files = ExitStack()
        for rank in range(len(recording.ranks)):
            for text in (recording.folder / f"rank{rank}" / "points.jsonl").read_bytes().splitlines():
                line = orjson.loads(text)
                self._lines[_name_of(line)].append((rank, line))

    def order(self) -> dict[PointName, int]:
        """Return all tensors with their order within a rank."""
        return {name: min(line["order"] for _, line in lines) for name, lines in self._lines.items()}

    def parts(self, name: PointName) -> Iterator[list[Tensor]]:
        """Yield the tensor [samples, positions, ...], fp32, once for each copy that tensor-parallel ranks hold.

        A rank's micro-batch is yielded at a time: all logits of a step can be more than the host's memory. Gradients
        are those of the step's mean loss, whatever the engine has scaled them with.
        """
        found: dict[tuple[int, int], dict[int, tuple[int, Line]]] = defaultdict(dict)
        for rank, line in self._lines[name]:
            place = self._recording.ranks[rank]
            found[line["micro_batch"], place["data_rank"]][place["tensor_rank"]] = rank, line
        scale = self._recording.units[name.step] if name.is_backward else 1.0
        # Samples are divided among the data-parallel ranks within each micro-batch (pretrain.data.samples.batches).
        for key in sorted(found):
            parts = {place: (line, self._read(rank, line)) for place, (rank, line) in found[key].items()}
            whole = [each.transpose(0, 1) for each in _joined(parts)]
            if (name.place.module, name.operation, name.name) in _OF_VOCABULARY:
                whole = [each[..., : self._recording.manifest["vocab_size"]] for each in whole]
            yield whole if scale in {0.0, 1.0} else [each / scale for each in whole]

    def micro_batches(self, name: PointName) -> list[int]:
        """Return the micro-batch, from 0 on its rank, of each sample of `parts`."""
        parts = {
            (line["micro_batch"], self._recording.ranks[rank]["data_rank"]): (rank, line)
            for rank, line in self._lines[name]
        }
        return [key[0] for key in sorted(parts) for _ in range(self._read(*parts[key]).shape[1])]

    def _read(self, rank: int, line: Line) -> Tensor:
        path = str(self._recording.folder / f"rank{rank}" / f"tensors{line['file']}.safetensors")
        if path not in self._open:
            self._open[path] = self._files.enter_context(safe_open(path, framework="pt"))
        tensor: Tensor = self._open[path].get_tensor(line["key"])
        return tensor if tensor.dtype == torch.float64 else tensor.float()


def _name_of(line: Mapping[str, Any]) -> PointName:
    place = ModulePlace(line["position"], line["module"])
    return PointName(line["step"], line["backward"], place, line["operation"], line["call"], line["name"])


def _joined(parts: Mapping[int, tuple[Line, Tensor]]) -> list[Tensor]:
    """Return a micro-batch's whole tensor [positions, samples, ...], once for each rank that has it whole."""
    lines, tensors = zip(*(parts[rank] for rank in sorted(parts)), strict=True)
    division = lines[0]["division"]
    if len(tensors) == 1:
        return list(tensors)
    if division == PARTIAL:
        return [torch.stack(tensors).sum(0)]
    if division == SAME:
        return list(tensors) if len({line["rows"][0] for line in lines}) == 1 else [torch.cat(tensors)]
    if division == SPLIT_HEADS:
        return [torch.cat(tensors, dim=2)]
    if division == SPLIT_GATED:
        halves = [tensor.chunk(2, dim=-1) for tensor in tensors]
        return [torch.cat([half[number] for number in range(2) for half in halves], dim=-1)]
    return [torch.cat(tensors, dim=-1)]
