"""Reads weights and moments of a recording by name, for any engine and layout."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from pretrain.checkpoint.sharded_format import weight_names
from pretrain.tools.align.recording.folder import ModulePlace, weights_folder
from pretrain.tools.convert.formats.sharded import index_of, sharded_tensors
from pretrain.tools.convert.model_weights import EMBEDDING, MAIN, OUTPUT

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from pretrain.tools.align.comparing.recording import Recording
    from pretrain.tools.convert.formats.sharded import ShardedTensor

_STATE = "optimizer.state."
_LAYER = "decoder.layers."


class Parameters:
    """State of the parameters before the first step, and after each."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._steps = [StoredTensors(weights_folder(recording.folder, step)) for step in range(recording.steps + 1)]

    @property
    def names(self) -> list[str]:
        """All parameters; those of one kind follow one another."""
        return list(self._keys)

    def weight(self, name: str, step: int) -> Tensor:
        """Return a weight after a step, fp64: the main one where there is one."""
        has_main = f"{_STATE}{MAIN}.{self._keys[name][0]}" in self._steps[0].shapes
        return self._read(f"{_STATE}{MAIN}." if has_main else "", name, step)

    def model_weight(self, name: str, step: int) -> Tensor:
        """Return a weight after a step as the model has it, fp64."""
        return self._read("", name, step)

    def moment(self, which: str, name: str, step: int) -> Tensor:
        """Return "exp_avg" or "exp_avg_sq" of a weight after a step, fp64."""
        return self._read(f"{_STATE}{which}.", name, step)

    @cached_property
    def _keys(self) -> dict[str, tuple[str, int | None]]:
        """Name -> key in the files, and the place in its first dimension; without buffers, which have no moments."""
        shapes = self._steps[0].shapes
        return {
            name: (key, place)
            for key, shape in shapes.items()
            if f"{_STATE}exp_avg.{key}" in shapes
            for name, place in weight_names(key, shape[0] if shape else 0)
        }

    def _read(self, prefix: str, name: str, step: int) -> Tensor:
        for other, tensors in enumerate(self._steps):
            if abs(other - step) > 1:  # a step needs the state before and after it
                tensors.release()
        key, place = self._keys[name]
        whole = self._steps[step].read(prefix + key, place).double()
        # Padding of the vocabulary depends on the layout.
        return whole[: self._recording.manifest["vocab_size"]] if name in {EMBEDDING, OUTPUT} else whole


def place_of_parameter(name: str, layers: int) -> ModulePlace:
    """Return the place of a parameter's module."""
    module = name.rpartition(".")[0]
    if name.startswith(_LAYER):
        number, _, rest = module.removeprefix(_LAYER).partition(".")
        return ModulePlace(int(number) + 1, rest)
    return ModulePlace(0 if name.startswith("embedding") else layers + 1, module.removeprefix("decoder."))


AT_ONCE = 1 << 30  # bytes of a checkpoint up to which all of its tensors are kept once they are read
_KEPT = 4
"""Tensors of a larger one that are kept: a layer's weight, its main weight and both moments, which are read in turn."""


class StoredTensors:
    """The tensors of one folder by their keys."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._index = folder, index_of(folder)
        entries = self._index.state_dict_metadata.items()
        self._entries = {key: entry for key, entry in entries if isinstance(entry, TensorStorageMetadata)}
        self._kept: dict[tuple[str, int | None], Tensor] = {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor by its key."""
        return {key: tuple(entry.size) for key, entry in self._entries.items()}

    def read(self, key: str, place: int | None) -> Tensor:
        """Return a tensor, or the part of it at one place of its first dimension."""
        if not self._is_large and place is not None:
            return self.read(key, None)[place]
        if (key, place) not in self._kept:
            if self._is_large and len(self._kept) == _KEPT:
                del self._kept[next(iter(self._kept))]  # the one that was read first
            self._kept[key, place] = self._read_one(key, place)
        return self._kept[key, place]

    def release(self) -> None:
        """Free the tensors that are kept; they can be read again."""
        self._kept = {}

    @cached_property
    def _is_large(self) -> bool:
        sizes = (entry.size.numel() * entry.properties.dtype.itemsize for entry in self._entries.values())
        return sum(sizes) > AT_ONCE

    def _read_one(self, key: str, place: int | None) -> Tensor:
        stored = self._pieces[key]
        return (stored.whole() if place is None else stored.of_first(place)).whole()

    @cached_property
    def _pieces(self) -> dict[str, ShardedTensor]:
        return sharded_tensors(self._folder, self._index)
