"""Traces one rank: builds its engine on fake tensors and takes steps in a world of fake groups."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.data.samples.sequence_pieces import ContextRank, document_ends
from pretrain.engine import groups
from pretrain.engine.build import build_engine
from pretrain.plugins.stand_in import observing
from pretrain.report.flops import seen_keys
from pretrain.report.timers import PhaseTimers
from pretrain.tools.plan.trace.planned_device import DeviceFunctions, PlannedDevice
from pretrain.tools.plan.trace.storages import StepPosition, Storages
from pretrain.tools.plan.trace.work import Follower, Work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from pretrain.engine.protocol import Batch
    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.kernel_table import KernelTable
    from pretrain.recipe import Recipe
    from pretrain.tools.plan.trace.storages import MemoryBlock


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTrace:
    """Trace of a rank."""

    rank: int
    blocks: Sequence[MemoryBlock]  # all memory, in the order of its allocation
    weights: frozenset[int]  # blocks of the parameters, once the engine is built
    gradients: frozenset[int]  # blocks of the gradients that the engine made with them
    steps: Sequence[tuple[int, int, int]]  # times at which each step begins, its optimizer begins, and it ends
    micro_batches: Sequence[int]
    work: Work
    parameters: dict[str, int]
    kernels: KernelTable
    notices: list[str] = field(default_factory=list)


def trace_rank(
    recipe: Recipe, plugins: Plugins, *, rank: int, world_size: int, vocab_size: int, micro_batches: Sequence[int]
) -> RankTrace:
    """Build a rank's engine and let it take a step for each number of micro-batches; the last one is reported."""
    # The bridges are installed for a `PlannedDevice`: see `stage_tracing.install_for`.
    planned = PlannedDevice(plugins.backend)
    device = planned.device(0)
    position, notices = StepPosition(), list[str]()
    if recipe.kernels.compile == "layer":
        notices = ["kernels.compile: layer is planned without compilation, which keeps more memory and takes longer"]
    # Functions that differ between the device and a CPU are replaced.
    is_cpu = plugins.backend.device_type == "cpu"
    functions = nullcontext() if is_cpu else DeviceFunctions(device, plugins.backend.figures().dropout_bits)
    groups.join_planned_world(rank, world_size)
    try:
        batch = batch_of(recipe, ContextRank(size=recipe.parallel.context_parallel_size))
        storages = Storages(device)
        work = Work(seen_keys(recipe.model) / recipe.model.seq_length)
        follower = Follower(position, storages, work)
        with functions, FakeTensorMode(allow_non_fake_inputs=True), follower, observing(follower):
            engine, kernels = build_engine(recipe, plugins, vocab_size, device, notices.append, planned=planned)
            work.names.update(_group_names())
            for model in engine.models:
                position.follow(model)
            weights, gradients = _static(engine.models, storages)
            steps = []
            for number, count in enumerate(micro_batches, start=1):
                position.begin_step(number)
                begin, timers = storages.now, _Timers(position, storages)
                batches = repeat(batch, count) if engine.reads_data else None
                engine.train_step(batches, count, timers)
                steps.append((begin, timers.updated, storages.now))
        return RankTrace(
            rank=rank,
            blocks=storages.blocks,
            weights=weights,
            gradients=gradients,
            steps=steps,
            micro_batches=tuple(micro_batches),
            work=work,
            parameters=_parameters(engine.models),
            kernels=kernels.table,
            notices=notices,
        )
    finally:
        groups.leave()


class _Timers(PhaseTimers):
    """Phases of a step: nothing is timed, and the position moves."""

    def __init__(self, position: StepPosition, storages: Storages) -> None:
        super().__init__()
        self._position, self._storages = position, storages
        self.updated = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if name == "optimizer":
            self.updated = self._storages.now
        with self._position.phase(name):
            yield


def batch_of(recipe: Recipe, context: ContextRank) -> Batch:
    """Return a micro-batch as the loader gives it, on the host; a sequence is one document."""
    shape = recipe.train.micro_batch_size, recipe.model.seq_length
    ids = {name: torch.zeros(shape, dtype=torch.long) for name in ("tokens", "labels", "position_ids")}
    ends = document_ends(ids["tokens"], eod=1) if recipe.data.reset_attention_mask else None
    return context.part({**ids, "loss_mask": torch.ones(shape)}, ends)


def _static(models: Sequence[nn.Module], storages: Storages) -> tuple[frozenset[int], frozenset[int]]:
    index = {id(block): number for number, block in enumerate(storages.blocks)}

    def blocks_of(*tensors: Any) -> set[int]:
        blocks = [storages.block_of(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)]
        return {index[id(block)] for block in blocks if block is not None}

    weights, gradients = set[int](), set[int]()
    for model in models:
        for parameter in model.parameters():
            weights |= blocks_of(parameter.data, getattr(parameter, "ds_tensor", None))
            gradients |= blocks_of(getattr(parameter, "main_grad", None), parameter.grad)
    return frozenset(weights), frozenset(gradients)


def _parameters(models: Sequence[nn.Module]) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, model in enumerate(models):
        for name, parameter in model.named_parameters():
            count = int(getattr(parameter, "ds_numel", 0) or parameter.numel())
            found[name if len(models) == 1 else f"chunk {number}: {name}"] = count
    return found


def _group_names() -> dict[str, str]:
    data, expert_data = parallel_state.get_data_parallel_group, parallel_state.get_expert_data_parallel_group
    named = [
        ("model", parallel_state.get_model_parallel_group()),
        ("tensor", parallel_state.get_tensor_model_parallel_group()),
        ("pipeline", parallel_state.get_pipeline_model_parallel_group()),
        ("context", parallel_state.get_context_parallel_group()),
        ("tensor and context", parallel_state.get_tensor_and_context_parallel_group()),
        ("data", data()),
        ("data", data(with_context_parallel=True)),
        ("data", data(with_context_parallel=True, partial_data_parallel=True)),  # the distributed optimizer's
        ("experts", parallel_state.get_expert_tensor_and_model_parallel_group()),
        ("expert data", expert_data()),
        ("expert data", expert_data(partial_expert_data_parallel=True)),
    ]
    return {group.group_name: name for name, group in named}
