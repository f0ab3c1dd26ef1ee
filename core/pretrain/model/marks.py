"""Marks in the model by which a rank knows the layer that it is in, forward and backward."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pretrain.model.layer import SerialLayer
from pretrain.report.hang.position import BACKWARD, EMBEDDING, FORWARD, OUTPUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from pretrain.report.hang.position import Position


def mark(models: Sequence[nn.Module], position: Position) -> None:
    """Have every layer of the model chunks, their embedding and output layer move the position.

    The backward pass is seen by hooks on the tensors between layers, which hold no tensor and change none. Layers that
    are computed again in the backward pass count as backward.
    """
    for model in models:
        layers = [module for module in model.modules() if isinstance(module, SerialLayer)]
        chunk = _ChunkMarks(
            position,
            before=EMBEDDING if getattr(model, "pre_process", True) else "",
            after=OUTPUT if getattr(model, "post_process", True) else "",
            last=layers[-1].layer_number if layers else 0,
        )
        model.register_forward_pre_hook(chunk.begin)
        model.register_forward_hook(chunk.end)
        for layer in layers:
            number = layer.layer_number
            layer.marks = partial(chunk.enter, number, layer is layers[0]), partial(chunk.leave, number)


class _ChunkMarks:
    """The marks of one model chunk, which count its micro-batches within an iteration."""

    __slots__ = ("_after", "_before", "_forward_has_ended", "_iteration", "_last", "_position", "micro_batch")

    def __init__(self, position: Position, *, before: str, after: str, last: int) -> None:
        self._position = position
        self._before, self._after, self._last = before, after, last
        self._iteration = -1
        self.micro_batch = 0
        self._forward_has_ended = False

    def begin(self, _model: Any, _inputs: Any) -> None:
        if self._iteration != self._position.iteration:
            self._iteration, self.micro_batch = self._position.iteration, 0
        self.micro_batch += 1
        self._forward_has_ended = False
        self._position.move(0, self._before, FORWARD, self.micro_batch)

    def end(self, _model: Any, _inputs: Any, output: Any) -> None:
        self._position.move(0, "", FORWARD, self.micro_batch)
        self.watch(output, 0 if self._after else self._last, self._after)
        self._forward_has_ended = True

    def enter(self, layer: int, is_first: bool, hidden_states: Any) -> None:
        """Enter a layer in the forward pass, or once more in the backward pass."""
        position = self._position
        if self._forward_has_ended:
            position.move(layer, "", BACKWARD, position.micro_batch)
        else:
            position.move(layer, "", FORWARD, self.micro_batch)
        if is_first:
            self.watch(hidden_states, 0, self._before)

    def leave(self, layer: int, hidden_states: Any) -> None:
        self.watch(hidden_states, layer, "")
        if layer == self._last and not self._forward_has_ended:
            self._position.move(0, self._after, FORWARD, self.micro_batch)

    def watch(self, output: Any, layer: int, part: str) -> None:
        """Move the position when the gradient of a tensor is there."""
        if getattr(output, "requires_grad", False):
            output.register_hook(partial(self._arrive, layer, part, self._position.micro_batch))

    def _arrive(self, layer: int, part: str, micro_batch: int, _gradient: Tensor) -> None:
        self._position.move(layer, part, BACKWARD, micro_batch)
