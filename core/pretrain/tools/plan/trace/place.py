"""Places in a step, by which memory and work are reported."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins.stand_in import current_operation

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Place:
    """Part of the plan's program.

    Attributes:
        step: 0 while the engine is built, then the number of the step.
        phase: "model" while the engine is built; "gradients" at the beginning of a step; "forward-backward",
            "optimizer".
        micro_batch: the last one whose forward pass has begun, from 1; 0 before.
        module: of the forward pass, "decoder.layers.0.mlp"; "" elsewhere.
        operation: whose kernel is being called; "" outside of kernels.
        is_backward: inside the backward pass.
        is_accumulation: where a weight's gradient has arrived: hooks of the engine reduce it.
    """

    step: int = 0
    phase: str = "model"
    micro_batch: int = 0
    module: str = ""
    operation: str = ""
    is_backward: bool = False
    is_accumulation: bool = False


class Position:
    """The current place, moved by the plan, the engine's phases and the hooks of modules."""

    def __init__(self) -> None:
        self._at = Place()
        self._places: dict[tuple[Place, str, str, str | None], Place] = {}
        self._modules: list[str] = []

    def here(self) -> Place:
        """Return the current place; equal places are one object."""
        module = self._modules[-1] if self._modules else ""
        node = torch._C._current_autograd_node()  # noqa: SLF001  torch has no public name for it
        kind = None if node is None else type(node).__name__
        key = self._at, module, current_operation(), kind
        place = self._places.get(key)
        if place is None:
            place = replace(
                self._at,
                module=module,
                operation=key[2],
                is_backward=kind is not None,
                is_accumulation=kind == "AccumulateGrad",
            )
            self._places[key] = place
        return place

    def begin_step(self, step: int) -> None:
        """Move to the beginning of a step."""
        self._at = Place(step, "gradients")

    def move(self, phase: str) -> None:
        """Move to another phase of the construction."""
        self._at = replace(self._at, phase=phase)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Be in a phase of the step for a block: `pretrain.report.timers.PhaseTimers.phase`."""
        before = self._at
        self._at = replace(self._at, phase=name)
        yield
        self._at = replace(before, micro_batch=self._at.micro_batch)

    def follow(self, model: torch.nn.Module) -> None:
        """Be in each module of a model during its forward pass; that of the model counts micro-batches."""
        model.register_forward_pre_hook(self._begin_micro_batch)
        for name, module in model.named_modules():
            if name:
                module.register_forward_pre_hook(self._enter(name))
                module.register_forward_hook(self._leave, always_call=True)

    def _enter(self, name: str) -> Any:
        def enter(*_: object) -> None:
            self._modules.append(name)

        return enter

    def _leave(self, *_: object) -> None:
        if self._modules:
            self._modules.pop()

    def _begin_micro_batch(self, *_: object) -> None:
        self._at = replace(self._at, micro_batch=self._at.micro_batch + 1)
