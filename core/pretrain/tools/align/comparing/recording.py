"""Reads a recording: its manifest, steps, samples and checks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from pretrain.errors import RunError
from pretrain.tools.align.recording.folder import FILE, FORMAT, KEYS, RANK, damaged_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)  # no slots: derived values are kept
class Recording:
    """A recorded folder.

    Attributes:
        folder: where it is.
        manifest: as `pretrain.tools.align.recording.folder.write_manifest` writes it.
        ranks: of each rank, what `pretrain.tools.align.recording.sink.Sink.finish` writes.
    """

    folder: Path
    manifest: Mapping[str, Any]
    ranks: Sequence[Mapping[str, Any]]

    @classmethod
    def open(cls, folder: Path) -> Recording:
        """Read everything but the tensors.

        Raises:
            RunError: it is no recording, not a complete one, or of another version.
        """
        try:
            manifest = orjson.loads((folder / FILE).read_bytes())
            made_as = manifest["format"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            msg = f"{folder} is not a recording.\nMake one: pretrain align RECIPE --record {folder}"
            raise RunError(msg) from error
        if made_as != FORMAT:
            msg = (
                f"{folder} is a recording of format {made_as}, by pretrain {manifest.get('pretrain', '(unknown)')}; "
                f"this one reads {FORMAT}.\nRecord both sides with versions of one format."
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
            msg = f"{folder} is not complete: a rank has not finished its part.\nRecord it again."
            raise RunError(msg) from error
        if damaged := damaged_file(folder, files):
            msg = f"{folder} is not complete: {damaged} is missing or cut off.\nCopy or record it again."
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
    def steps(self) -> int:
        """Number of recorded steps."""
        return len(self.ranks[0]["steps"])

    @cached_property
    def samples(self) -> dict[str, str]:
        """Hash of each sample, by "STEP.NUMBER".

        Raises:
            RunError: ranks have read different text for one sample.
        """
        found: dict[str, str] = {}
        for rank in self.ranks:
            for name, digest in rank["samples"].items():
                if found.setdefault(name, digest) != digest:
                    msg = (
                        f"{self.folder}: ranks read different text for sample {name.partition('.')[2]} of step "
                        f"{name.partition('.')[0]}.\nGive all of them the same token files, and record it again."
                    )
                    raise RunError(msg)
        return found

    def loss(self, step: int) -> float | None:
        """Return the loss of a step, from 1; None where no rank has one."""
        found = [
            rank["steps"][step - 1]["loss"]
            for rank in self.ranks
            if rank["tensor_rank"] == 0 and rank["steps"][step - 1]["loss"] is not None
        ]
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

    @property
    def has_micro_batches(self) -> bool:
        """True if a rank has several micro-batches in a step, of which only the first one's calls are checked."""
        return any(each["micro_batch"] for rank in self.ranks for each in rank["units"])

    def checks(self) -> Iterator[Mapping[str, Any]]:
        """Yield the checks of calls against float64, each with its rank."""
        for rank in self.ranks:
            for check in rank["checks"]:
                yield {**check, "rank": rank["rank"]}

    def kernel(self, operation: str) -> str:
        """Return the kernel of an operation and its provider in words."""
        for row in self.manifest["kernels"]["rows"]:
            if row["operation"] == operation:
                return f"'{row['kernel']}' of {row['provider']}"
        return "none"

    @property
    def title(self) -> str:
        """The side in a few words: backend, engine, dtype and layout."""
        recipe, layout = self.manifest["recipe"], self.manifest["layout"]
        sizes = [
            f"{name} {layout[key]}"
            for name, key in (
                ("tensor", "tensor_model_parallel_size"),
                ("pipeline", "pipeline_model_parallel_size"),
                ("data", "data_parallel_size"),
            )
            if layout[key] > 1
        ]
        engine = str(recipe["engine"]["name"])
        if engine == "deepspeed":
            engine += f" ZeRO {recipe['engine']['zero']['stage']}"
        return ", ".join([f"backend {self.manifest['kernels']['backend']}", engine, self.dtype, *sizes])

    @property
    def versions(self) -> str:
        """Versions of pretrain and torch that recorded the side."""
        return f"pretrain {self.manifest['pretrain']}, torch {self.manifest['torch']}"
