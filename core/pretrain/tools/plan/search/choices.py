"""Legal layouts for a number of devices, and why others are not legal."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pretrain.recipe.checks.effect import problems_of
from pretrain.recipe.checks.training import indivisible_by_tensor_size
from pretrain.recipe.layout import global_batch_sizes, unchecked_layout
from pretrain.recipe.section import as_text
from pretrain.recipe.stages import balanced_layers
from pretrain.tools.plan.search.trace_pieces import PiecesKey, one_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout

RECOMPUTE = ("none", "selective", "full")
LARGEST_MICRO_BATCH = 64
"""Samples above which no micro-batch is tried, except the recipe's own: matmuls are large enough long before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutChoice:
    """Choice of a layout and of what saves memory."""

    tensor: int  # ranks that share every layer
    pipeline: int
    chunks: int  # of layers per stage; 1 without the interleaved schedule
    data: int
    micro_batch: int
    recompute: str
    with_sequence: bool
    zero: int  # stage of ZeRO; 1 is megatron-core's distributed optimizer too
    layers: tuple[int, ...] | None = None  # of every chunk, where stages are uneven; None: evenly, or as the recipe's
    expert: int = 1  # ranks that share a layer's experts, in models that have some
    expert_tensor: int = 1  # ranks that share every expert, in models that have some
    context: int = 1  # ranks that share every sequence

    @property
    def devices(self) -> int:
        """All ranks."""
        return self.tensor * self.pipeline * self.replicas

    @property
    def replicas(self) -> int:
        """Ranks that hold equal weights."""
        return self.context * self.data

    @property
    def expert_data(self) -> int:
        """Ranks that hold equal experts."""
        return self.tensor * self.replicas // (self.expert * self.expert_tensor)

    @property
    def pieces(self) -> PiecesKey:
        """What its estimate is summed from: the rows of a rank's experts do not depend on how many ranks share them."""
        expert = next((size for size in range(2, self.expert + 1) if self.expert % size == 0), 1)
        return PiecesKey(self.tensor, self.with_sequence, expert, self.expert_tensor, context=self.context)

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe with this choice; keys of other pipelines are left out."""
        given, parallel = recipe.parallel, dict[str, object]()
        own = given.pipeline_model_parallel_size, given.virtual_pipeline_model_parallel_size or 1
        if (self.pipeline, self.chunks) != own:  # those of the recipe may have other layers from stage to stage
            parallel = one_stage() | {"pipeline_layers": self.layers}
        parallel |= {
            "tensor_model_parallel_size": self.tensor,
            "pipeline_model_parallel_size": self.pipeline,
            "virtual_pipeline_model_parallel_size": self.chunks if self.chunks > 1 else None,
            "context_parallel_size": self.context,
            "sequence_parallel": self.with_sequence,
        }
        if recipe.model.num_experts is not None:
            parallel["expert_model_parallel_size"] = self.expert
            parallel["expert_tensor_parallel_size"] = self.expert_tensor
        engine = recipe.engine
        if engine.name == "megatron":
            gathers = given.overlap_param_gather and self.zero == 1
            parallel |= {"use_distributed_optimizer": self.zero == 1, "overlap_param_gather": gathers}
        else:
            engine = engine.model_copy(update={"zero": engine.zero.model_copy(update={"stage": self.zero})})
        recompute: dict[str, object] = {"granularity": self.recompute}
        if recipe.recompute.granularity != self.recompute:
            recompute |= {"method": "uniform", "num_layers": 1, "distribute_saved_activations": False}
        return recipe.model_copy(
            update={
                "parallel": given.model_copy(update=parallel),
                "engine": engine,
                "train": recipe.train.model_copy(update={"micro_batch_size": self.micro_batch}),
                "recompute": recipe.recompute.model_copy(update=recompute),
            }
        )

    def layout(self, recipe: Recipe) -> Layout:
        """Return the layout of the ranks."""
        return unchecked_layout(self.recipe(recipe), self.devices)


class _Split(NamedTuple):
    tensor: int
    pipeline: int
    chunks: int
    layers: tuple[int, ...] | None
    context: int
    expert: int = 1
    expert_tensor: int = 1


class Choices:
    """Legal choices for a number of devices; `refused` counts what is not legal, by the reason."""

    def __init__(self, recipe: Recipe, devices: int, devices_per_node: int) -> None:
        self.refused: Counter[str] = Counter()
        self._recipe, self._devices, self._node = recipe, devices, devices_per_node

    def __iter__(self) -> Iterator[LayoutChoice]:
        """Yield the legal choices, and count the others."""
        for choice in self._of_sizes():
            # Keys without effect are left out as the recipe is read.
            problems = [each for each in problems_of(choice.recipe(self._recipe)) if not each.switched_off_by]
            if problems:
                self.refused[f"{problems[0].path}: {problems[0].text}"] += 1
            else:
                yield choice

    def _of_sizes(self) -> Iterator[LayoutChoice]:
        for tensor in _divisors(self._devices):
            if self._can_share_layers(tensor):
                for pipeline, chunks, layers in self._pipelines(self._devices // tensor):
                    contexts = self._contexts(self._devices // tensor // pipeline)
                    for context, experts in product(contexts, self._experts(tensor, pipeline)):
                        yield from self._with_data(_Split(tensor, pipeline, chunks, layers, context, *experts))

    def _contexts(self, devices: int) -> list[int]:
        """Return numbers of ranks that share a sequence: others than 1 only where the recipe has others."""
        if self._recipe.parallel.context_parallel_size == 1:
            return [1]
        return [size for size in _divisors(devices) if self._recipe.model.seq_length % (2 * size) == 0]

    def _experts(self, tensor: int, pipeline: int) -> Iterator[tuple[int, int]]:
        """Yield the numbers of ranks that share a layer's experts, and of those that share an expert."""
        experts, ranks = self._recipe.model.num_experts, self._devices // pipeline
        if experts is None:
            yield 1, 1
            return
        for expert_tensor, expert in product(sorted({1, tensor}), _divisors(experts)):
            if ranks % (expert_tensor * expert) == 0:
                yield expert, expert_tensor

    def _can_share_layers(self, tensor: int) -> bool:
        if tensor > self._node:
            node = f"{self._node} device{'s' * (self._node > 1)}"
            self.refused[f"a tensor-parallel group would span nodes of {node}"] += 1
            return False
        given = self._recipe.parallel.model_copy(update={"sequence_parallel": False})
        keys = indivisible_by_tensor_size(self._recipe.model_copy(update={"parallel": given}), tensor)
        if keys:
            self.refused[f"model.{keys[0]} is not a multiple of the tensor-parallel size"] += 1
        return not keys

    def _pipelines(self, devices: int) -> Iterator[tuple[int, int, tuple[int, ...] | None]]:
        """Yield numbers of stages and of chunks, and the layers of uneven ones."""
        layers, given = self._recipe.model.num_layers, self._recipe.parallel
        ends = given.num_layers_in_first_pipeline_stage, given.num_layers_in_last_pipeline_stage
        is_uneven = (given.pipeline_layers, *ends) != (None, None, None)
        for pipeline in _divisors(devices):
            if pipeline > 1 and self._recipe.engine.name == "deepspeed":
                self.refused["engine deepspeed has no pipeline stages"] += 1
            elif pipeline == given.pipeline_model_parallel_size and is_uneven:
                yield pipeline, given.virtual_pipeline_model_parallel_size or 1, None
            elif layers < pipeline:
                self.refused[f"more stages than model.num_layers {layers}"] += 1
            else:
                # Chunks of as many layers each, or of one less.
                most = -(-layers // pipeline)
                for chunks in _divisors(most) if pipeline > 1 else [1]:
                    if chunks * pipeline <= layers:
                        uneven = tuple(balanced_layers(layers, pipeline * chunks)) if layers % pipeline else None
                        yield pipeline, chunks, uneven

    def _with_data(self, split: _Split) -> Iterator[LayoutChoice]:
        data = self._devices // split.tensor // split.pipeline // split.context
        accumulated = self._recipe.accumulation_steps
        sizes = global_batch_sizes(self._recipe)
        if any(size % data for size in sizes):
            self.refused["train.global_batch_size is not a multiple of the data-parallel size"] += 1
            return
        shares = [size // data for size in sizes]
        for micro_batch in _divisors(math.gcd(*shares)):
            if micro_batch > LARGEST_MICRO_BATCH and micro_batch != self._recipe.train.micro_batch_size:
                continue
            if split.chunks > 1 and any(share // micro_batch % split.pipeline for share in shares):
                self.refused["the micro-batches of a step are not a multiple of the interleaved stages"] += 1
            elif accumulated is not None and shares[-1] // micro_batch != accumulated.steps:
                self.refused[f"{accumulated.place}: a step must have {accumulated.steps} micro-batches"] += 1
            else:
                yield from self._savings(split, data, micro_batch)

    def _savings(self, split: _Split, data: int, micro_batch: int) -> Iterator[LayoutChoice]:
        pieces = 2 * split.context if split.context > 1 else 1
        is_divisible = self._recipe.model.seq_length % (pieces * split.tensor) == 0
        sequences = (False, True) if split.tensor > 1 and is_divisible else (False,)
        if self._recipe.model.num_experts is not None:
            sequences = sequences[-1:]  # experts need it, as the recipe's checks say
        for recompute, with_sequence, zero in product(RECOMPUTE, sequences, self._zero_stages(data * split.context)):
            saving: dict[str, Any] = {"recompute": recompute, "with_sequence": with_sequence, "zero": zero}
            yield LayoutChoice(**split._asdict(), data=data, micro_batch=micro_batch, **saving)

    def _zero_stages(self, replicas: int) -> tuple[int, ...]:
        zero = self._recipe.engine.zero
        if self._recipe.engine.name == "megatron":
            return (0, 1) if replicas > 1 else (int(self._recipe.parallel.use_distributed_optimizer),)
        if zero.offload_param.device != "none":
            return (3,)
        return (1, 2, 3) if zero.offload_optimizer.device != "none" else (0, 1, 2, 3)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


PATHS = (
    "parallel.tensor_model_parallel_size",
    "parallel.pipeline_model_parallel_size",
    "parallel.virtual_pipeline_model_parallel_size",
    "parallel.pipeline_layers",
    "parallel.num_layers_in_first_pipeline_stage",
    "parallel.num_layers_in_last_pipeline_stage",
    "parallel.context_parallel_size",
    "parallel.expert_model_parallel_size",
    "parallel.sequence_parallel",
    "parallel.use_distributed_optimizer",
    "engine.zero.stage",
    "train.micro_batch_size",
    "recompute.granularity",
    "recompute.method",
    "recompute.num_layers",
)
"""Keys that a choice may change. Others that lose their effect by it are left out as the recipe is read."""


def set_arguments(recipe: Recipe, choice: LayoutChoice) -> tuple[str, ...]:
    """Return "section.key=value" for every key in which the recipe with the choice differs from the recipe."""
    values_of = attrgetter(*PATHS)
    values = zip(PATHS, values_of(recipe), values_of(choice.recipe(recipe)), strict=True)
    only_full = {"recompute.method", "recompute.num_layers"} if choice.recompute != "full" else set()
    changed = {path: after for path, before, after in values if before != after and path not in only_full}
    return tuple(f"{path}={_written(value)}" for path, value in (changed | _expert_tensor(recipe, choice)).items())


def _expert_tensor(recipe: Recipe, choice: LayoutChoice) -> dict[str, int]:
    """Return the key that is the tensor-parallel size where it is not given, and without effect where that is 1."""
    if recipe.model.num_experts is None or choice.tensor == 1:
        return {}
    name, parallel = "expert_tensor_parallel_size", recipe.parallel
    read = parallel.expert_tensor_parallel_size if name in parallel.model_fields_set else choice.tensor
    return {} if choice.expert_tensor == read else {f"parallel.{name}": choice.expert_tensor}


def _written(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return as_text(value)
