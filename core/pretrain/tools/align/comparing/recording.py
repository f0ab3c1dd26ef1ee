"""Reads a recording: its manifest, steps, samples and checks."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson
import torch
from safetensors import safe_open

from pretrain.conformance.compared_part import evenly
from pretrain.data.samples.sequence_pieces import ContextRank
from pretrain.errors import RunError
from pretrain.tools.align.recording.folder import (
    FILE,
    FORMAT,
    KEYS,
    MODULUS,
    PARTIAL,
    RANK,
    ROLES,
    SAME,
    SPLIT_GATED,
    SPLIT_HEADS,
    ModulePlace,
    damaged_file,
    recorded_places,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True, kw_only=True)  # no slots: derived values are kept
class Recording:
    """A recorded folder."""

    folder: Path
    manifest: Mapping[str, Any]  # as `pretrain.tools.align.recording.folder.write_manifest` writes it
    ranks: Sequence[Mapping[str, Any]]  # of each rank, what `pretrain.tools.align.recording.folder.Sink.finish` writes

    @classmethod
    def open(cls, folder: Path) -> Recording:
        """Read everything but the tensors."""
        try:
            manifest = orjson.loads((folder / FILE).read_bytes())
            made_as = manifest["format"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            msg = f"{folder} is not a recording.\nMake one: pretrain align RECIPE --record {folder}"
            raise RunError(msg) from error
        if made_as != FORMAT:
            msg = (
                f"{folder} is a recording of format {made_as}, by pretrain {manifest.get('pretrain', '(unknown)')}; "
                f"this one reads format {FORMAT}.\nRecord both sides with versions that have the same format."
            )
            raise RunError(msg)
        if absent := [key for key in KEYS if key not in manifest]:
            msg = f"{folder / FILE} is damaged: it lacks {', '.join(absent)}.\nCopy or record it again."
            raise RunError(msg)
        try:
            count = manifest["layout"]["world_size"]
            ranks = [orjson.loads((folder / f"rank{rank}" / RANK).read_bytes()) for rank in range(count)]
            files = [each["files"] for each in ranks]
        except (OSError, ValueError, KeyError, TypeError) as error:
            msg = f"{folder} is incomplete: a rank did not finish its part.\nRecord it again."
            raise RunError(msg) from error
        if damaged := damaged_file(folder, files):
            msg = f"{folder} is incomplete: {damaged} is missing or truncated.\nCopy or record it again."
            raise RunError(msg)
        return cls(folder=folder, manifest=manifest, ranks=ranks)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return int(self.manifest["recipe"]["model"]["num_layers"])

    @property
    def dtype(self) -> str:
        """The recipe's: "fp32", "bf16" or "fp16"."""
        return str(self.manifest["recipe"]["precision"]["dtype"])

    @property
    def fp8(self) -> str | None:
        """The recipe's `precision.fp8`, which older versions do not have."""
        kind: str | None = self.manifest["recipe"]["precision"].get("fp8")
        return kind

    @property
    def arithmetic(self) -> str:
        """The dtype, and that of matmuls if it is another: "bf16 with rowwise fp8"."""
        return f"{self.dtype} with {self.fp8} fp8" if self.fp8 else self.dtype

    @property
    def steps(self) -> int:
        """Number of recorded steps."""
        return len(self.ranks[0]["steps"])

    @cached_property
    def samples(self) -> dict[str, int]:
        """Hash of each sample, by "STEP.NUMBER"."""
        parts: dict[str, dict[int, int]] = defaultdict(dict)  # of each context-parallel rank
        for rank in self.ranks:
            for name, digest in rank["samples"].items():
                if parts[name].setdefault(rank["context"]["rank"], digest) != digest:
                    step, _, sample = name.partition(".")
                    msg = f"{self.folder}: ranks read different text for sample {sample} of step {step}.\n"
                    raise RunError(msg + "Give all ranks the same token files, and record it again.")
        return {name: sum(digests.values()) % MODULUS for name, digests in parts.items()}

    def loss(self, step: int) -> float | None:
        """Return the loss of a step, from 1; None where no rank has one."""
        losses = [rank["steps"][step - 1]["loss"] for rank in self.ranks if rank["tensor_rank"] == 0]
        found = [loss for loss in losses if loss is not None]
        return sum(found) / len(found) if found else None

    def step(self, number: int) -> Mapping[str, Any]:
        """Return gradient norm, learning rate and whether it was skipped, of a step from 1."""
        values: Mapping[str, Any] = self.ranks[0]["steps"][number - 1]
        return values

    @cached_property
    def units(self) -> list[float]:
        """Sum of the gradients of all tokens' losses, of each step: what all gradients of activations scale with."""
        sums = [0.0] * (self.steps + 1)
        for rank in self.ranks:
            for each in rank["units"] if rank["tensor_rank"] == 0 else ():
                sums[each["step"]] += each["unit"]
        return sums

    @cached_property
    def by_position(self) -> Tensor:
        """Where each recorded position is among those of all context-parallel ranks, one rank after the other."""
        length, size = self.manifest["recipe"]["model"]["seq_length"], self.ranks[0]["context"]["size"]
        positions, ranks = evenly(length, self.manifest["positions"]), [ContextRank(rank, size) for rank in range(size)]
        own = [each.positions(length)[recorded_places(each, length, positions)] for each in ranks]
        return torch.cat(own).argsort()

    @property
    def has_micro_batches(self) -> bool:
        """True if a rank has several micro-batches in a step, of which only the first one's calls are checked."""
        return any(each["micro_batch"] for rank in self.ranks for each in rank["units"])

    def checks(self) -> Iterator[Mapping[str, Any]]:
        """Yield the checks of calls against float64, each with its rank."""
        for rank in self.ranks:
            for check in rank["checks"]:
                yield {**check, "rank": rank["rank"]}

    def kernel(self, operation: str, module: str = "") -> str:
        """Return the kernel of an operation, in a module that may have a role, and its provider in words."""
        rows = {row["operation"]: row for row in self.manifest["kernels"]["rows"]}
        role = ROLES.get(module.rpartition(".")[2], "")
        row = rows.get(f"{operation}@{role}", rows.get(operation))
        return "none" if row is None else f"'{row['kernel']}' of {row['provider']}"

    @property
    def title(self) -> str:
        """The side in a few words: backend, engine, dtype and layout."""
        recipe, layout = self.manifest["recipe"], self.manifest["layout"]
        kinds = {"tensor": "tensor_model", "pipeline": "pipeline_model", "context": "context", "data": "data"}
        kinds["expert"] = "expert_model"
        sizes = {kind: layout.get(f"{key}_parallel_size") or 1 for kind, key in kinds.items()}
        shown = [f"{kind} {size}" for kind, size in sizes.items() if size > 1]
        engine = str(recipe["engine"]["name"])
        if engine == "deepspeed":
            engine += f" ZeRO {recipe['engine']['zero']['stage']}"
        return ", ".join([f"backend {self.manifest['kernels']['backend']}", engine, self.arithmetic, *shown])

    @property
    def versions(self) -> str:
        """Versions of pretrain and torch that recorded the side."""
        return f"pretrain {self.manifest['pretrain']}, torch {self.manifest['torch']}"


Line = dict[str, Any]
_OF_VOCABULARY = {("output_layer", "linear", "output"), ("", "cross_entropy", "logits")}
"""Module, operation and name of tensors with a column for each token; their padding depends on the layout."""


@dataclass(frozen=True, slots=True)
class PointName:
    """Identity of a recorded tensor in both sides."""

    step: int  # from 1
    is_backward: bool
    place: ModulePlace
    operation: str  # whose call gave it; "" for the module itself
    call: int
    name: str  # "output", or the input whose gradient it is


class Points:
    """The recorded tensors of one side."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._lines: dict[PointName, list[tuple[int, Line]]] = defaultdict(list)
        self._open: dict[str, Any] = {}
        self._files = ExitStack()
        for rank in range(len(recording.ranks)):
            for text in (recording.folder / f"rank{rank}" / "points.jsonl").read_bytes().splitlines():
                line = orjson.loads(text)
                place, step = ModulePlace(line["position"], line["module"]), line["step"]
                name = PointName(step, line["backward"], place, line["operation"], line["call"], line["name"])
                self._lines[name].append((rank, line))

    def order(self) -> dict[PointName, int]:
        """Return all tensors with their order within a rank."""
        return {name: min(line["order"] for _, line in lines) for name, lines in self._lines.items()}

    def parts(self, name: PointName) -> Iterator[list[Tensor]]:
        """Yield the tensor [samples, positions, ...], fp32, once for each copy that tensor-parallel ranks hold."""
        # A rank's micro-batch is yielded at a time: all logits of a step can be more than the host's memory. Gradients
        # are those of the step's mean loss, whatever the engine has scaled them with.
        found: dict[tuple[int, int], list[tuple[int, Line]]] = defaultdict(list)
        for rank, line in self._lines[name]:
            found[line["micro_batch"], self._recording.ranks[rank]["data_rank"]].append((rank, line))
        scale = self._recording.units[name.step] if name.is_backward else 1.0
        # Samples are divided among the data-parallel ranks within each micro-batch (pretrain.data.samples.batches).
        for key in sorted(found):
            whole = [each.transpose(0, 1) for each in self._whole(found[key])]
            if (name.place.module, name.operation, name.name) in _OF_VOCABULARY:
                whole = [each[..., : self._recording.manifest["vocab_size"]] for each in whole]
            yield whole if scale in {0.0, 1.0} else [each / scale for each in whole]

    def micro_batches(self, name: PointName) -> list[int]:
        """Return the micro-batch, from 0 on its rank, of each sample of `parts`."""
        ranks, lines = self._recording.ranks, self._lines[name]
        parts = {(line["micro_batch"], ranks[rank]["data_rank"]): (rank, line) for rank, line in lines}
        return [key[0] for key in sorted(parts) for _ in range(self._read(*parts[key]).shape[1])]

    def _whole(self, lines: Sequence[tuple[int, Line]]) -> list[Tensor]:
        """Return a micro-batch's tensor [positions, samples, ...], once for each rank that has every feature of it."""
        parts: dict[int, dict[int, list[tuple[int, Line]]]] = defaultdict(lambda: defaultdict(list))
        for rank, line in lines:
            place = self._recording.ranks[rank]
            parts[place["context"]["rank"]][place["tensor_rank"]].append((rank, line))
        copies = [
            _joined({tensor: self._pieces(pieces) for tensor, pieces in of_context.items()})
            for _, of_context in sorted(parts.items())
        ]
        return [torch.cat(each)[self._recording.by_position] for each in zip(*copies, strict=True)]

    def _pieces(self, lines: list[tuple[int, Line]]) -> tuple[Line, Tensor]:
        """Return one rank's tensor, of which each piece of the sequence may be a line of its own."""
        lines = sorted(lines, key=lambda each: each[1]["rows"][0])
        return lines[0][1], torch.cat([self._read(*each) for each in lines])

    def _read(self, rank: int, line: Line) -> Tensor:
        path = str(self._recording.folder / f"rank{rank}" / f"tensors{line['file']}.safetensors")
        if path not in self._open:
            self._open[path] = self._files.enter_context(safe_open(path, framework="pt"))
        tensor: Tensor = self._open[path].get_tensor(line["key"])
        return tensor if tensor.dtype == torch.float64 else tensor.float()


def _joined(parts: Mapping[int, tuple[Line, Tensor]]) -> list[Tensor]:
    """Return the tensor-parallel ranks' tensor [positions, samples, ...], once for each that has it whole."""
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
