"""Weights, gradients and updates of a recording by name, whatever engine and layout trained them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pretrain.checkpoint.sharded_format import weight_names
from pretrain.tools.align.model_place import Place
from pretrain.tools.align.reading.stored_tensors import StoredTensors
from pretrain.tools.align.recording.weights_folder import weights_folder
from pretrain.tools.convert.model_weights import EMBEDDING, MAIN, OUTPUT

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.tools.align.reading.recording import Recording

_STATE = "optimizer.state."
_LAYER = "decoder.layers."


class Parameters:
    """State of the parameters before the first step, and after each."""

    def __init__(self, recording: Recording) -> None:
        """Read the indices."""
        self._recording = recording
        self._steps = [StoredTensors(weights_folder(recording.folder, step)) for step in range(recording.steps + 1)]

    @property
    def names(self) -> list[str]:
        """All parameters; those of one kind follow one another."""
        return list(self._keys)

    def weight(self, name: str, step: int) -> Tensor:
        """Return a weight after a step, fp64: the main one where there is one."""
        return self._read(f"{_STATE}{MAIN}." if self._has_main(name) else "", name, step)

    def model_weight(self, name: str, step: int) -> Tensor:
        """Return a weight after a step as the model has it, fp64."""
        return self._read("", name, step)

    def moment(self, which: str, name: str, step: int) -> Tensor:
        """Return "exp_avg" or "exp_avg_sq" of a weight after a step, fp64."""
        return self._read(f"{_STATE}{which}.", name, step)

    @cached_property
    def _keys(self) -> dict[str, tuple[str, int | None]]:
        """Name -> key in the files, and the place in its first dimension."""
        return {
            name: (key, place)
            for key, shape in self._steps[0].shapes.items()
            for name, place in weight_names(key, shape[0] if shape else 0)
        }

    def _has_main(self, name: str) -> bool:
        return f"{_STATE}{MAIN}.{self._keys[name][0]}" in self._steps[0].shapes

    def _read(self, prefix: str, name: str, step: int) -> Tensor:
        for other, tensors in enumerate(self._steps):
            if abs(other - step) > 1:  # a step needs the state before and after it
                tensors.release()
        key, place = self._keys[name]
        whole = self._steps[step].read(prefix + key, place).double()
        # Padding of the vocabulary depends on the layout.
        return whole[: self._recording.manifest["vocab_size"]] if name in {EMBEDDING, OUTPUT} else whole


def place_of_parameter(name: str, layers: int) -> Place:
    """Return the place of a parameter's module."""
    module = name.rpartition(".")[0]
    if name.startswith(_LAYER):
        number, _, rest = module.removeprefix(_LAYER).partition(".")
        return Place(int(number) + 1, rest)
    return Place(0 if name.startswith("embedding") else layers + 1, module.removeprefix("decoder."))
