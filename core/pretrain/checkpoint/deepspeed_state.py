"""State of the DeepSpeed engine in a checkpoint: the megatron engine's tensors, under the same names.

ZeRO splits flat tensors by stage and number of ranks. Weights are gathered one at a time, and each data-parallel rank
keeps and writes an equal share of them; so any stage, layout and engine reads the checkpoint.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor

from pretrain.bridge.deepspeed import mpu
from pretrain.bridge.deepspeed.zero_state import MAIN, full_shape, zero_state
from pretrain.checkpoint.distributed_states import pieces
from pretrain.checkpoint.megatron_state import sharding_metadata
from pretrain.checkpoint.sharded_format import PREFIX
from pretrain.model.weights import global_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pretrain.bridge.deepspeed.zero_step import DynamicLossScale
    from pretrain.checkpoint.contents import Counters
    from pretrain.model.gpt import GPT

BATCH = 1 << 28  # elements of weights that a rank reads at a time: with moments and main weights 4 GiB of host memory


class DeepSpeedState:
    """The `EngineState` of a model, the optimizer that DeepSpeed made, and the one in it that counts steps."""

    def __init__(
        self,
        model: GPT,
        optimizer: Any,
        counted: Any,
        scale: DynamicLossScale | None,
        *,
        states: Mapping[str, torch.dtype],
        stage: int,
        is_fp32: bool,
    ) -> None:
        self._model = model
        self._counted = counted
        self._scale = scale
        self._zero = zero_state(optimizer, stage, states)
        self.optimizer_states = tuple(states)
        self._dtypes = {**states, MAIN: torch.float32}
        self._names = self.optimizer_states if is_fp32 else (*states, MAIN)
        self._zero.allocate()
        self._counted.taken = 0

    def sharded(self) -> dict[str, Any]:
        """Return this rank's share of weights and optimizer state."""
        weights: dict[str, Any] = {}
        optimizer: list[Any] = []
        for name, part, start, stop in self._divided_among_ranks():
            if not isinstance(part.data, torch.nn.Parameter):
                weights[name] = part  # empty extra states
                continue
            values = {state: self._zero.whole(part.data, state) for state in (MAIN, *self.optimizer_states)}
            if start < stop:
                # After every step a weight is its main weight, rounded to fewer bits.
                whole = replace(part, data=values[MAIN].to(part.data.dtype))
                ours = whole.data.flatten()[start:stop].to("cpu", copy=True)
                weights[name] = list(pieces(whole, "", start, ours))
                for state in self._names:
                    ours = values[state].flatten()[start:stop].to("cpu", self._dtypes[state], copy=True)
                    optimizer += pieces(whole, f"{PREFIX}.{state}.", start, ours)
        self._zero.close()
        return {"model0": weights, "optimizer": dict(enumerate(optimizer))}

    def weight_names(self) -> set[str]:
        """Return the names of this rank's weights."""
        return {name for name, _ in global_names(self._model)}

    def counters(self) -> Counters:
        """Return the steps taken and the loss scale."""
        return {"step": self._counted.taken, "loss_scaler": self._scale.counts if self._scale else None}

    def load(self, read: Callable[[dict[str, Any]], dict[str, Any]], counters: Counters | None) -> None:
        """Read the weights, and with counters the optimizer's state, some weights at a time."""
        names = () if counters is None else self._names
        for batch in self._batches():
            self._load(read, batch, names)
        self._zero.close()
        if counters is not None:
            self._counted.taken = counters["step"]
            if self._scale is not None and counters["loss_scaler"] is not None:
                self._scale.counts = counters["loss_scaler"]

    def _load(
        self, read: Callable[[dict[str, Any]], dict[str, Any]], batch: list[tuple[str, Any]], names: Sequence[str]
    ) -> None:
        weights, states = {}, {}
        for name, part in batch:
            shape = full_shape(part.data)
            weights[name] = replace(part, data=torch.empty(shape, dtype=part.data.dtype))
            for state in names:
                states[f"{state}.{name}"] = make_sharded_optimizer_tensor(part, torch.empty(shape), f"{PREFIX}.{state}")
        loaded = read({"model0": weights, "optimizer": states})
        for name, part in batch:
            self._zero.put_weight(part.data, loaded["model0"][name])
            for state in names:
                self._zero.put(part.data, state, loaded["optimizer"][f"{state}.{name}"])

    def _layout(self) -> dict[str, Any]:
        """Return for each weight its part of the whole model; weights with a common state are together."""
        with _in_full_shape(self._model):
            layout: dict[str, Any] = self._model.sharded_state_dict(metadata=sharding_metadata())
        return dict(sorted(layout.items(), key=self._order))

    def _order(self, entry: tuple[str, Any]) -> int:
        weight = entry[1].data
        return self._zero.order(weight) if isinstance(weight, torch.nn.Parameter) else 0

    def _divided_among_ranks(self) -> Iterator[tuple[str, Any, int, int]]:
        """Yield every entry of the layout with the elements, first and end, that this data-parallel rank writes."""
        layout = self._layout()
        sizes = {name: _elements(part) for name, part in layout.items()}
        ranks, rank = mpu.get_data_parallel_world_size(), mpu.get_data_parallel_rank()
        total, before = sum(sizes.values()), 0
        for name, part in layout.items():
            size = sizes[name]
            row = (1, *full_shape(part.data))[-1] if size else 1
            cuts = (total * number // ranks - before for number in (rank, rank + 1))
            start, stop = (size if cut >= size else max(0, cut) // row * row for cut in cuts)
            yield name, part, start, stop
            before += size

    def _batches(self) -> Iterator[list[tuple[str, Any]]]:
        batch: list[tuple[str, Any]] = []
        elements = 0
        for name, part in self._layout().items():
            if not isinstance(part.data, torch.nn.Parameter):
                continue
            if batch and elements + _elements(part) > BATCH:
                yield batch
                batch, elements = [], 0
            batch.append((name, part))
            elements += _elements(part)
        yield batch


def _elements(part: Any) -> int:
    return math.prod(full_shape(part.data)) if isinstance(part.data, torch.nn.Parameter) else 0


@contextmanager
def _in_full_shape(model: GPT) -> Iterator[None]:
    """Give every weight its shape, without memory for it; ZeRO-3 leaves weights empty."""
    held = {parameter: parameter.data for parameter in model.parameters() if hasattr(parameter, "ds_shape")}
    for parameter, data in held.items():
        parameter.data = torch.empty((), dtype=data.dtype, device=data.device).expand(full_shape(parameter))
    try:
        yield
    finally:
        for parameter, data in held.items():
            parameter.data = data
