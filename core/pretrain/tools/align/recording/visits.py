"""Tracks which module, and which micro-batch, is being executed."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pretrain.model.layer import SerialLayer
from pretrain.tools.align.recording.folder import ModulePlace, Visit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from pretrain.tools.align.recording.sink import Sink


_BEFORE = "embedding"
"""Modules whose path begins with it come before the layers; all others outside of layers come after them."""


class Visits:
    """The modules that are being executed, the innermost last, by hooks on all modules of a rank."""

    def __init__(self, models: Sequence[nn.Module], layers: int, sink: Sink) -> None:
        """Watch the modules.

        Args:
            models: the model chunks of this rank.
            layers: of the whole model.
            sink: takes the outputs of layers and the gradients of their inputs.
        """
        self._sink = sink
        self._open: list[Visit] = []
        self._seen: Counter[tuple[int, bool]] = Counter()
        for model in models:
            for path, module in model.named_modules():
                self._watch(module, place_of(model, path, layers), batch_first=_is_batch_first(model, path))

    @property
    def current(self) -> Visit | None:
        """The innermost module's."""
        return self._open[-1] if self._open else None

    def begin_step(self) -> None:
        """Count micro-batches from 0 again."""
        self._seen.clear()
        self._open.clear()

    def _watch(self, module: nn.Module, place: ModulePlace, *, batch_first: bool) -> None:
        def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # megatron-core recomputes activations inside the backward pass.
            again = torch._C._current_graph_task_id() != -1  # noqa: SLF001  as torch.utils.checkpoint asks
            key = id(module), again
            visit = Visit(place, self._seen[key], batch_first, again)
            self._seen[key] += 1
            self._open.append(visit)
            if isinstance(module, SerialLayer):
                _take_gradient(self._sink, visit, args[0] if args else kwargs["hidden_states"])

        def leave(_module: nn.Module, _args: Any, output: Any) -> None:
            visit = self._open.pop()
            if visit.again or not (isinstance(module, SerialLayer) or place.module == _BEFORE):
                return
            if output is not None:  # None after an error
                found = output[0] if isinstance(output, tuple) else output
                self._sink.add(visit, "", 0, "output", found, is_backward=False)

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave, always_call=True)


def _is_batch_first(model: nn.Module, path: str) -> bool:
    """Say whether a module sees what megatron-core's embedding has not transposed yet."""
    return path == "embedding_layernorm" and not model.embedding.reduce_scatter_embeddings  # type: ignore[union-attr]


def place_of(model: nn.Module, path: str, layers: int) -> ModulePlace:
    """Return the place of the module at a path of a model chunk."""
    words = path.split(".")
    if words[:2] == ["decoder", "layers"] and len(words) > 2:
        number = model.get_submodule(".".join(words[:3])).layer_number
        return ModulePlace(int(number), ".".join(words[3:]))  # type: ignore[arg-type]  # megatron-core's, an int
    name = path.removeprefix("decoder.")
    return ModulePlace(0 if path.startswith(_BEFORE) else layers + 1, name)


def _take_gradient(sink: Sink, visit: Visit, hidden: torch.Tensor) -> None:
    if torch.is_grad_enabled() and hidden.requires_grad:
        take = partial(_add_gradient, sink, visit)
        hidden.register_hook(take)  # type: ignore[no-untyped-call]


def _add_gradient(sink: Sink, visit: Visit, gradient: torch.Tensor | None) -> None:
    if gradient is None:  # a later kernel has lost it
        return
    sink.add(visit, "", 0, "input", gradient, is_backward=True)
