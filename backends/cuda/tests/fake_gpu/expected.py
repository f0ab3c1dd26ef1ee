"""Expected communication of a step, from a recipe's sizes and layout alone, without megatron-core or the engine.

Narayanan et al. 2021, arXiv 2104.04473, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2: a
layer split over t ranks sums its input's gradients and its outputs, each of s x b x h, or gathers and reduce-scatters
them where the sequence is split too. Bytes are those of the whole tensor of a collective.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from pretrain.recipe import load_recipe

TENSOR, PIPELINE, DATA = "TENSOR_MODEL_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP"
EMBEDDING, MODEL = "EMBEDDING_GROUP", "MODEL_PARALLEL_GROUP"
EXPERTS = "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"
REPLICAS = "DATA_PARALLEL_GROUP"
SHARDS = "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP"

RECIPES = Path(__file__).parents[4] / "recipes"
FP32 = 4


@dataclass(frozen=True)
class Place:
    """A rank's place in its job; ranks count over tensor, then data, then pipeline parallelism."""

    recipe: object
    vocab_size: int
    t: int
    p: int
    d: int
    stage: int
    chunks: int

    @classmethod
    def of(cls, job):
        """Return the place of a job's rank."""
        recipe = load_recipe(RECIPES / job["recipe"], tuple(job["set"]))
        parallel = recipe.parallel
        t, p = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
        d = job["world"] // (t * p)
        chunks = parallel.virtual_pipeline_model_parallel_size or 1
        return cls(recipe, job["vocab_size"], t, p, d, job["rank"] // (t * d), chunks)

    @property
    def is_first(self):
        return self.stage == 0

    @property
    def is_last(self):
        return self.stage == self.p - 1

    @property
    def layers(self):
        return self.recipe.model.num_layers // self.p

    @property
    def padded_vocab(self):
        multiple = self.recipe.model.make_vocab_size_divisible_by * self.t
        return -(-self.vocab_size // multiple) * multiple

    @property
    def hidden(self):
        """Bytes of the hidden states of a micro-batch, fp16 or bf16."""
        model = self.recipe.model
        return model.seq_length * self.recipe.train.micro_batch_size * model.hidden_size * 2

    @property
    def tied(self):
        return not self.recipe.model.untie_embeddings_and_output_weights

    @property
    def gradient_bytes(self):
        return FP32 if self.recipe.precision.grad_reduce_in_fp32 else 2


def parameters(place: Place) -> int:
    """Return how many parameters the rank holds, with biases and LayerNorm, multi-head attention and no gates."""
    model, t = place.recipe.model, place.t
    h, f = model.hidden_size, model.ffn_hidden_size
    layer = (3 * h * h + 3 * h) // t + (h * h // t + h) + (h * f + f) // t + (f * h // t + h) + 2 * 2 * h
    table = place.padded_vocab // t * h
    count = place.layers * layer
    if place.is_first:
        count += table + (h * model.max_position_embeddings if model.position_embedding_type != "rope" else 0)
    if place.is_last:
        count += 2 * h  # the final norm
        count += 0 if place.is_first and place.tied else table
    return count


def zero_bytes(job) -> dict[str, int]:
    """Return "operation group" -> bytes of one step under ZeRO without tensor parallelism, in fp16 or bf16.

    Rajbhandari et al. 2020, arXiv 1910.02054, section 7: gradients are summed, and parameters gathered from the ranks
    that stepped them. Stage 3 gathers them for every micro-batch, here once, because models this small stay gathered
    until its backward pass, and splits every micro-batch's gradients.
    """
    place, micro_batches = Place.of(job), job["micro_batches"]
    weights, gradients = parameters(place) * 2, parameters(place) * place.gradient_bytes
    match place.recipe.engine.zero.stage:
        case 3:
            gathered, reduced = micro_batches * weights, micro_batches * gradients
            return {f"allgather_base {REPLICAS}": gathered, f"reduce_scatter_base {REPLICAS}": reduced}
        case 2:
            return {f"allgather_base {REPLICAS}": weights, f"allreduce {REPLICAS}": micro_batches * gradients}
        case 1:
            return {f"allgather_base {REPLICAS}": weights, f"allreduce {REPLICAS}": gradients}
    return {f"allreduce {REPLICAS}": gradients}


def collectives(job) -> dict[str, tuple[int, int]]:
    """Return "operation group" -> (calls, bytes) of one step of the megatron engine."""
    place = Place.of(job)
    sent = defaultdict(lambda: [0, 0])

    def add(operation, group, calls, size):
        if calls:
            sent[f"{operation} {group}"][0] += calls
            sent[f"{operation} {group}"][1] += calls * size

    micro_batches = job["micro_batches"]
    if place.t > 1:
        _tensor(place, add, micro_batches)
    if place.p > 1:
        _pipeline(place, add, micro_batches)
    _end_of_step(place, add)
    return {key: tuple(value) for key, value in sent.items()}


def exchanges(job) -> dict[str, list[int]]:
    """Return "operation group" -> [calls, bytes] of one step of a rank, all of whose layers have experts; in bf16.

    A layer sends every rank its counts, int64, and rows and their weights, fp32, to the experts; results come back, and
    so do the gradients of all three.
    """
    place = Place.of(job)
    model, parallel = place.recipe.model, place.recipe.parallel
    sharing = parallel.expert_tensor_parallel_size
    rows = model.seq_length * place.recipe.train.micro_batch_size // place.t * model.moe_router_topk * sharing
    size = 8 * model.num_experts * sharing + 2 * rows * (2 * model.hidden_size * 2 + FP32)
    times = place.layers * job["micro_batches"]
    return {f"alltoall_base {EXPERTS}": [7 * times, size * times]}


def _tensor(place, add, micro_batches):
    model, split = place.recipe.model, place.recipe.parallel.sequence_parallel
    times = place.layers * micro_batches
    branches = 1 if model.parallel_residual and not model.hidden_dropout else 2  # sums of outputs in a layer
    forwards = 2 if place.recipe.recompute.granularity == "full" else 1
    if split:
        add("allgather_base", TENSOR, times * 2 * forwards, place.hidden)  # inputs of both column-parallel linears
        add("reduce_scatter_base", TENSOR, times * branches * forwards, place.hidden)  # outputs of the branches
        add("allgather_base", TENSOR, times * (2 + branches), place.hidden)  # inputs again, and outputs' gradients
        add("reduce_scatter_base", TENSOR, times * 2, place.hidden)  # gradients of the inputs
    else:
        add("allreduce", TENSOR, times * branches * forwards, place.hidden)
        add("allreduce", TENSOR, times * 2, place.hidden)
    if place.is_first:
        _embedding(place, add, micro_batches)
    if place.is_last:
        _output(place, add, micro_batches)
    if split:
        add("allreduce", TENSOR, 1, _replicated(place) * place.gradient_bytes)


def _embedding(place, add, micro_batches):
    """Every rank looks its part of the vocabulary up; with positions the sum is split over the sequence after them."""
    if not place.recipe.parallel.sequence_parallel:
        add("allreduce", TENSOR, micro_batches, place.hidden)
        return
    has_positions = place.recipe.model.position_embedding_type != "rope"
    add("allreduce" if has_positions else "reduce_scatter_base", TENSOR, micro_batches, place.hidden)
    add("allgather_base", TENSOR, micro_batches, place.hidden)


def _output(place, add, micro_batches):
    """The output layer is column-parallel; the loss needs the greatest logit, a sum and the target's."""
    model = place.recipe.model
    tokens = model.seq_length * place.recipe.train.micro_batch_size
    add("allreduce", TENSOR, micro_batches, tokens * FP32)
    add("allreduce", TENSOR, micro_batches, 2 * tokens * FP32)
    if place.recipe.parallel.sequence_parallel:
        add("allgather_base", TENSOR, 2 * micro_batches, place.hidden)
        add("reduce_scatter_base", TENSOR, micro_batches, place.hidden)
    else:
        add("allreduce", TENSOR, micro_batches, place.hidden)


def _replicated(place):
    """Parameters that every tensor-parallel rank holds whole and feeds with its part of the sequence."""
    h = place.recipe.model.hidden_size
    in_layer = 2 * 2 * h + 2 * h  # two norms; the biases of the two row-parallel linears
    return place.layers * in_layer + (2 * h if place.is_last else 0)


def _pipeline(place, add, micro_batches):
    size = place.hidden // (place.t if place.recipe.parallel.sequence_parallel else 1)
    passes = place.chunks * micro_batches
    at_an_end = micro_batches  # of the model's first and last chunk one side has no neighbour
    messages = passes - (at_an_end if place.is_last else 0) + passes - (at_an_end if place.is_first else 0)
    add("send", PIPELINE, messages, size)
    add("recv", PIPELINE, messages, size)


def _end_of_step(place, add):
    recipe = place.recipe
    count, splits = parameters(place), recipe.parallel.use_distributed_optimizer
    if splits:
        add("reduce_scatter_tensor_coalesced", DATA, 1, count * place.gradient_bytes)
        add("allgather_into_tensor_coalesced", DATA, 1, count * 2)
    else:
        add("allreduce_coalesced", DATA, 1, count * place.gradient_bytes)
    if place.p > 1 and place.tied and (place.is_first or place.is_last):
        add("allreduce", EMBEDDING, 1, place.padded_vocab // place.t * recipe.model.hidden_size * place.gradient_bytes)
    scalars = 1 + (recipe.precision.dtype == "fp16")  # the gradient norm; whether any gradient overflowed
    add("allreduce", SHARDS if splits else MODEL, scalars, FP32)
