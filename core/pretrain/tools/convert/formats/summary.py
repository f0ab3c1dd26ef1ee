"""Summary of a checkpoint, whatever its format."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Number of parts that the files divide a model into, by kind of parallelism; 1 where it is stored whole.

    Attributes:
        tensor: tensor-parallel ranks.
        pipeline: pipeline stages.
        virtual_pipeline: chunks of layers on each stage.
        expert: expert-parallel ranks.
        data: data-parallel ranks among which ZeRO divides.
    """

    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1
    expert: int = 1
    data: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A checkpoint in a few words and numbers.

    Attributes:
        path: the folder or file of this one checkpoint.
        format: its format's name.
        version: of the format, where it has one.
        iteration: of the training, None where the files do not say it.
        model: settings of a recipe's section `model`, as far as the files tell them, and `padded_vocab_size`.
        parameters: of the whole model, shared ones once; the padding of the vocabulary included. None where
            weights have names that are not known.
        parts: how the files divide it.
        dtypes: of the weights, as a recipe calls them.
        contents: some of "weights", "optimizer", "rng", "schedule".
        files: number of files, those in folders of it included.
        size: of all files in bytes.
    """

    path: Path
    format: str
    version: str | None = None
    iteration: int | None = None
    model: dict[str, Any] = field(default_factory=dict)
    parameters: int | None
    parts: Parts = Parts()
    dtypes: tuple[str, ...]
    contents: tuple[str, ...]
    files: int
    size: int

    def as_json(self) -> dict[str, Any]:
        """Return the summary as values of JSON."""
        return asdict(self) | {"path": str(self.path)}


def contents(*, optimizer: bool, rng: bool, schedule: bool) -> tuple[str, ...]:
    """Return a summary's contents: the weights, and what else is there."""
    others = {"optimizer": optimizer, "rng": rng, "schedule": schedule}
    return ("weights", *(name for name, is_there in others.items() if is_there))
