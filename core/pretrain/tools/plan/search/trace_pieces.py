"""Per-layer costs from which any layout's memory and work are summed: differences between traces of small models."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, NamedTuple

from pretrain.model.requests import compute_dtype
from pretrain.recipe.layout import unchecked_layout
from pretrain.recipe.sections.engine import EngineSection
from pretrain.recipe.sections.parallel import RecomputeSection
from pretrain.tools.plan.trace.stage_tracing import TraceSubject, in_processes, trace_subject
from pretrain.tools.plan.trace.trace_summary import of_step

if TYPE_CHECKING:
    from collections.abc import Collection

    from pretrain.recipe import Recipe
    from pretrain.tools.plan.device import PlanDevice
    from pretrain.tools.plan.stage_plan import Message, Operation
    from pretrain.tools.plan.trace.rank_trace import RankTrace
    from pretrain.tools.plan.trace.storages import StepPlace


class PiecesKey(NamedTuple):
    """What pieces depend on."""

    tensor: int
    with_sequence: bool
    expert: int = 1  # ranks that share the traced experts: 1, or a few for any number of them
    expert_tensor: int = 1
    dense: bool = False  # layers without experts, in a model of which some others have them
    context: int = 1


_SHAPES = ((1, 1), (2, 1), (1, 2))  # layers and samples of the traced models
_EXPERTS = ".mlp.experts."
_ATTENTION = "core_attention"
"""Module of megatron-core between the attention's projections, whose forward pass selective recompute repeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPiece:
    """Work of a part of the model for one micro-batch of one sample, and of its update."""

    parameters: int = 0
    experts: int = 0  # those of them that ranks divide as they share experts
    forward: Counter[Operation] = field(default_factory=Counter)
    attention: Counter[Operation] = field(default_factory=Counter)  # of the forward pass, what selective recompute does
    backward: Counter[Operation] = field(default_factory=Counter)  # operations of the backward pass, without recompute
    fixed: frozenset[Operation] = frozenset()  # whose size does not depend on the samples: sums of weights' gradients
    update: Counter[Operation] = field(default_factory=Counter)
    sent_forward: Counter[Message] = field(default_factory=Counter)
    sent_backward: Counter[Message] = field(default_factory=Counter)
    kept: int = 0  # bytes that the forward pass leaves for the backward pass
    kept_by_attention: int = 0  # those of them that selective recompute does not keep

    def __sub__(self, other: ModelPiece) -> ModelPiece:
        return ModelPiece(**{each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)})


@dataclass(frozen=True, slots=True)
class Passing:
    """Temporary bytes of a pass."""

    first: int  # with a micro-batch of one sample: some, such as the gradient of a weight, are there whatever its size
    next: int  # of every further sample

    @classmethod
    def of(cls, with_one: int, with_two: int) -> Passing:
        """Return the bytes from those measured with one and with two samples."""
        return cls(with_one, max(0, with_two - with_one))

    def bytes(self, samples: int) -> int:
        """Return the bytes for a micro-batch."""
        return self.first + (samples - 1) * self.next


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """Pieces for one tensor-parallel size, with or without sequence parallelism."""

    layer: ModelPiece
    embedding: ModelPiece
    head: ModelPiece  # what the last stage has besides: norm, output layer, loss
    expert_ranks: int  # that share the layer's experts
    tied: int  # parameters of the output layer that are the embedding's, of which the last of several stages has a copy
    passing_in_layer: Passing  # what a layer's backward pass takes beyond what is kept
    passing_in_head: Passing  # what the loss and its backward pass take beyond what is kept
    entering: int  # bytes of a layer's input
    dense: Pieces | None = None  # of layers without experts, where `layer` is one of others that have them


def trace_pieces(
    recipe: Recipe, device: PlanDevice, vocab_size: int, keys: Collection[PiecesKey]
) -> dict[PiecesKey, Pieces]:
    """Trace a layer, two layers, and a layer with two samples, for each key; return the pieces.

    Where some layers have experts and others not, both kinds are traced.
    """
    dense = dict[PiecesKey, PiecesKey]()
    if len(set(recipe.model.layers_with_experts)) > 1:
        dense = {key: PiecesKey(key.tensor, key.with_sequence, dense=True, context=key.context) for key in keys}
    wanted = sorted({*keys, *dense.values()})
    shapes = [(key, *shape) for key in wanted for shape in _SHAPES]
    small = [small_model(recipe, *shape) for shape in shapes]
    subjects = [
        TraceSubject(
            recipe=each,
            device=device,
            layout=unchecked_layout(each, each.least_ranks),
            vocab_size=vocab_size,
        )
        for each in small
    ]
    traced = dict(zip(shapes, in_processes(_trace, subjects), strict=True))
    found = {key: _pieces(recipe, key, *(traced[key, *shape] for shape in _SHAPES)) for key in wanted}
    return {key: replace(found[key], dense=found[dense[key]] if dense else None) for key in keys}


def small_model(recipe: Recipe, key: PiecesKey, layers: int, samples: int) -> Recipe:
    """Return a recipe of a few layers of one kind on tensor-parallel ranks alone, without recompute."""
    parallel = {
        "tensor_model_parallel_size": key.tensor,
        "expert_model_parallel_size": key.expert,
        "expert_tensor_parallel_size": key.expert_tensor,
        "context_parallel_size": key.context,
        "sequence_parallel": key.with_sequence,
        "use_distributed_optimizer": False,
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
        **one_stage(),
    }
    model = {"num_layers": layers, "first_k_dense_replace": layers if key.dense else 0, "moe_layer_freq": 1}
    train = {"micro_batch_size": samples, "global_batch_size": samples, "rampup_batch_size": None}
    return recipe.model_copy(
        update={
            "model": recipe.model.model_copy(update=model),
            "parallel": recipe.parallel.model_copy(update=parallel),
            "train": recipe.train.model_copy(update=train),
            "recompute": RecomputeSection(),
            "engine": EngineSection(),
        }
    )


def one_stage() -> dict[str, int | None]:
    """Return the keys of section parallel for a pipeline of one stage."""
    return {
        "pipeline_model_parallel_size": 1,
        "virtual_pipeline_model_parallel_size": None,
        "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None,
        "pipeline_layers": None,
        "overlap_p2p_comm": None,
    }


@dataclass(frozen=True, slots=True)
class _SmallModel:
    """Second step of a small model on one stage with one micro-batch."""

    embedding: ModelPiece
    layers: ModelPiece  # theirs, with the backward pass and the update of the whole model
    head: ModelPiece
    passing_in_layers: int  # bytes beyond what is kept at the peak of the first layer's backward pass
    passing_in_head: int  # the same before the backward pass of any layer ends


def _trace(subject: TraceSubject) -> _SmallModel:
    trace = trace_subject(subject, rank=0, micro_batches=(1, 1), name="a layer")
    operations, messages, last = trace.work.operations, trace.work.messages, len(trace.steps)
    activations = _Activations(trace)

    def piece(region: str) -> ModelPiece:
        def is_here(place: StepPlace) -> bool:
            return place.is_forward and _region(place.module) == region

        return ModelPiece(
            parameters=sum(count for name, count in trace.parameters.items() if _region(name) == region),
            experts=sum(
                count for name, count in trace.parameters.items() if _region(name) == region and _EXPERTS in name
            ),
            forward=of_step(operations, last, is_here),
            attention=of_step(operations, last, lambda place: is_here(place) and _ATTENTION in place.module),
            sent_forward=of_step(messages, last, is_here),
            kept=activations.kept(region),
        )

    def is_backward(place: StepPlace) -> bool:
        return place.is_in_pass and place.is_backward

    embedding, head = piece("embedding"), piece("head")
    layers = replace(
        piece("layers"),
        backward=of_step(operations, last, is_backward),
        update=of_step(operations, last, lambda place: not place.is_in_pass),
        sent_backward=of_step(messages, last, is_backward),
        kept_by_attention=activations.kept("layers", _ATTENTION),
    )
    kept = layers.kept + embedding.kept
    in_layers, in_head = (max(0, peak - kept) for peak in activations.peaks())
    return _SmallModel(embedding, layers, head, in_layers, in_head)


def _region(module: str) -> str:
    if module.startswith("embedding"):
        return "embedding"
    return "layers" if module.startswith("decoder.layers.") else "head"


class _Activations:
    """Activations of a trace's last step: what forward and backward pass allocate and free again."""

    def __init__(self, trace: RankTrace) -> None:
        begin, self._updated, _ = trace.steps[-1]
        self._blocks = [
            block
            for number, block in enumerate(trace.blocks)
            if block.born >= begin
            and not block.on_host
            and block.place.phase == "forward-backward"
            and (block.died or self._updated) <= self._updated
            and number not in trace.gradients
        ]
        turn = min((block.born for block in self._blocks if block.place.is_backward), default=self._updated)
        self._kept = [block for block in self._blocks if block.born < turn <= (block.died or self._updated)]

    def kept(self, region: str, part: str = "") -> int:
        """Return the bytes that the forward pass of a region, or of its modules of a name, leaves for the backward."""
        modules = ((block.place.module, block.size) for block in self._kept)
        return sum(size for module, size in modules if _region(module) == region and part in module)

    def peaks(self) -> tuple[int, int]:
        """Return the peak bytes of the first layer's backward pass, and until that of the last layer frees anything."""
        deaths: dict[str, list[int]] = defaultdict(list)  # of each layer's kept blocks
        for block in self._kept:
            if _region(block.place.module) == "layers" and block.died is not None:
                deaths[block.place.module.split(".")[2]].append(block.died)
        last = max(deaths.values(), key=max)
        return self._peak(min(last), max(last)), self._peak(0, min(min(each) for each in deaths.values()))

    def _peak(self, begin: int, end: int) -> int:
        changes = [(block.born, block.size) for block in self._blocks]
        changes += [(block.died, -block.size) for block in self._blocks if block.died is not None]
        now = peak = 0
        for time, change in sorted(changes):
            if time > end:
                break
            now += change
            if time >= begin:
                peak = max(peak, now)
        return peak


def _pieces(recipe: Recipe, key: PiecesKey, one: _SmallModel, two: _SmallModel, two_samples: _SmallModel) -> Pieces:
    model, size = recipe.model, compute_dtype(recipe).itemsize
    tensor, tokens = key.tensor, model.seq_length // key.context
    layer = two.layers - one.layers
    # The attention's output is kept anyway, by the projection after it.
    context = tokens * model.num_attention_heads * model.head_size * size // tensor
    kept_by_attention = max(0, layer.kept_by_attention - context)
    also = {*two_samples.layers.forward, *two_samples.layers.backward}
    both = (*layer.forward, *layer.backward)
    fixed = frozenset(operation for operation in both if operation in also and not operation.flops)
    layer = replace(layer, fixed=fixed, kept_by_attention=kept_by_attention)
    # The head has all of the ends' backward pass, of which the embedding's share is small.
    rest = one.layers - layer
    # Rows of the embedding that are not words': positions, scale and bias of its norm.
    others = model.max_position_embeddings if model.position_embedding_type == "learned_absolute" else 0
    others += 2 if model.embedding_layernorm else 0
    return Pieces(
        layer=layer,
        embedding=one.embedding,
        head=replace(one.head, backward=rest.backward, update=rest.update, sent_backward=rest.sent_backward),
        expert_ranks=key.expert,
        tied=0 if model.untie_embeddings_and_output_weights else one.embedding.parameters - others * model.hidden_size,
        passing_in_layer=Passing.of(one.passing_in_layers, two_samples.passing_in_layers),
        passing_in_head=Passing.of(one.passing_in_head, two_samples.passing_in_head),
        entering=tokens * model.hidden_size * size // (tensor if key.with_sequence else 1),
    )
