"""Files of a checkpoint that is to be written, and the bytes of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pretrain.tools.convert.weights.lazy_tensor import LazyTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pretrain.tools.convert.weights.model_weights import ModelWeights


class TargetFile(Protocol):
    """One file that is written as a whole, or again from its beginning."""

    @property
    def name(self) -> str:
        """Path inside the target."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in it."""
        ...

    def write(self, path: Path, written: Callable[[int], None]) -> dict[str, Any]:
        """Write the file and flush it to the disk.

        Args:
            path: where.
            written: is called with the bytes of each block that has been written.

        Returns:
            its digest and size, and what `Target.finish` needs to know of it, as values of JSON.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A checkpoint that is to be written.

    Attributes:
        files: large ones, written side by side, in any order.
        small: content of small files by their path inside the target.
        folder: of the one checkpoint inside the target, which gets the checksums; empty: the target itself.
        finish: writes what depends on the written files, such as an index; None: nothing does. It gets the target's
            folder and, by name, what writing each of `files` returned.
    """

    files: Sequence[TargetFile]
    small: Mapping[str, bytes] = field(default_factory=dict)
    folder: str = ""
    finish: Callable[[Path, Mapping[str, Any]], None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetLayout:
    """Division of a target among ranks, for formats that have one.

    Attributes:
        tensor: tensor-parallel ranks.
        pipeline: pipeline stages.
    """

    tensor: int = 1
    pipeline: int = 1


class Write(Protocol):
    """Function of a dialect that plans a target.

    Raises:
        CheckpointError: the format cannot hold the model.
    """

    def __call__(self, weights: ModelWeights, layout: TargetLayout) -> Target:
        """Return the files of a model's weights."""
        ...


def tensors_in(content: Any) -> Iterator[LazyTensor]:
    """Yield the tensors of nested dicts, lists and tuples, depth first."""
    if isinstance(content, LazyTensor):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from tensors_in(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from tensors_in(value)
