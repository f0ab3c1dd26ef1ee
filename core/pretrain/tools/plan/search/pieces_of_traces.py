"""Pieces of a model as differences between traces of one and of two layers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pretrain.model.requests import compute_dtype
from pretrain.recipe.layout import Layout
from pretrain.recipe.sections.engine import EngineSection
from pretrain.recipe.sections.parallel import RecomputeSection
from pretrain.tools.plan.search.pieces import Passing, Piece, Pieces
from pretrain.tools.plan.search.traced_model import trace_models
from pretrain.tools.plan.trace.stage_tracing import Subject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pretrain.recipe import Recipe
    from pretrain.tools.plan.device import PlanDevice
    from pretrain.tools.plan.search.traced_model import TracedModel

Key = tuple[int, bool]
"""Tensor-parallel size, and whether there is sequence parallelism."""


_SHAPES = ((1, 1), (2, 1), (1, 2))
"""Layers and samples of the traced models."""


def trace_pieces(recipe: Recipe, device: PlanDevice, vocab_size: int, keys: Iterable[Key]) -> dict[Key, Pieces]:
    """Trace the pieces for each tensor-parallel size, with and without sequence parallelism.

    Traced are a layer, two layers, and a layer with two samples.

    Args:
        recipe: what is planned.
        device: for which.
        vocab_size: entries of the tokenizer, before padding.
        keys: the wanted ones.

    Raises:
        PretrainError: an engine cannot be built: no allowed kernel, a broken plugin.
    """
    wanted = sorted(keys)
    shapes = [(key, *shape) for key in wanted for shape in _SHAPES]
    subjects = [_subject(recipe, device, vocab_size, *shape) for shape in shapes]
    traced = dict(zip(shapes, trace_models(subjects), strict=True))
    return {key: _pieces(recipe, key, *(traced[key, *shape] for shape in _SHAPES)) for key in wanted}


def small_model(recipe: Recipe, key: Key, layers: int, samples: int) -> Recipe:
    """Return a recipe of a few of the layers on tensor-parallel ranks alone, without recompute."""
    tensor, with_sequence = key
    parallel = recipe.parallel.model_copy(
        update={
            "tensor_model_parallel_size": tensor,
            "sequence_parallel": with_sequence,
            "use_distributed_optimizer": False,
            "overlap_grad_reduce": False,
            "overlap_param_gather": False,
            **one_stage(),
        }
    )
    train = recipe.train.model_copy(
        update={"micro_batch_size": samples, "global_batch_size": samples, "rampup_batch_size": None}
    )
    return recipe.model_copy(
        update={
            "model": recipe.model.model_copy(update={"num_layers": layers}),
            "parallel": parallel,
            "train": train,
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


def _subject(recipe: Recipe, device: PlanDevice, vocab_size: int, key: Key, layers: int, samples: int) -> Subject:
    layout = Layout(
        world_size=key[0],
        tensor_model_parallel_size=key[0],
        pipeline_model_parallel_size=1,
        data_parallel_size=1,
        virtual_pipeline_model_parallel_size=None,
        layers_of_chunks=(layers,),
        micro_batch_size=samples,
    )
    small = small_model(recipe, key, layers, samples)
    return Subject(
        recipe=small,
        backend=device.backend_name,
        device=device.name if device.is_named else None,
        layout=layout,
        vocab_size=vocab_size,
    )


def _pieces(recipe: Recipe, key: Key, one: TracedModel, two: TracedModel, two_samples: TracedModel) -> Pieces:
    layer = _layer(one, two, two_samples, _context_bytes(recipe) // key[0])
    embedding, head = _ends(one, layer)
    in_layer = [max(0, model.peak_in_layers - _kept(model)) for model in (one, two_samples)]
    in_head = [max(0, model.peak_in_head - _kept(model)) for model in (one, two_samples)]
    model = recipe.model
    size = model.seq_length * model.hidden_size * compute_dtype(recipe).itemsize
    return Pieces(
        layer=layer,
        embedding=embedding,
        head=head,
        tied=0 if model.untie_embeddings_and_output_weights else _rows(recipe, embedding),
        passing_in_layer=Passing(in_layer[0], max(0, in_layer[1] - in_layer[0])),
        passing_in_head=Passing(in_head[0], max(0, in_head[1] - in_head[0])),
        entering=size // (key[0] if key[1] else 1),
    )


def _kept(traced: TracedModel) -> int:
    return traced.kept["layers"] + traced.kept.get("embedding", 0)


def _rows(recipe: Recipe, embedding: Piece) -> int:
    """Return the parameters of the embedding of words alone."""
    model = recipe.model
    positions = model.max_position_embeddings if model.position_embedding_type == "learned_absolute" else 0
    norm = 2 if model.embedding_layernorm else 0
    return embedding.parameters - (positions + norm) * model.hidden_size


def _context_bytes(recipe: Recipe) -> int:
    """Return the bytes of the attention's output, which the projection after it keeps anyway."""
    model = recipe.model
    return model.seq_length * model.num_attention_heads * model.head_size * compute_dtype(recipe).itemsize


def _layer(one: TracedModel, two: TracedModel, two_samples: TracedModel, context: int) -> Piece:
    forward = two.forward["layers"] - one.forward["layers"]
    backward = two.backward - one.backward
    also = {*two_samples.forward["layers"], *two_samples.backward}
    return Piece(
        parameters=two.parameters["layers"] - one.parameters["layers"],
        forward=forward,
        attention=two.attention - one.attention,
        backward=backward,
        fixed=frozenset(operation for operation in (*forward, *backward) if operation in also and not operation.flops),
        update=two.update - one.update,
        sent_forward=two.sent_forward.get("layers", Counter()) - one.sent_forward.get("layers", Counter()),
        sent_backward=two.sent_backward - one.sent_backward,
        kept=two.kept["layers"] - one.kept["layers"],
        kept_by_attention=max(0, two.kept_by_attention - one.kept_by_attention - context),
    )


def _ends(one: TracedModel, layer: Piece) -> tuple[Piece, Piece]:
    """Return embedding and head; the head has all of their backward pass, the embedding's share of which is small."""
    embedding = Piece(
        parameters=one.parameters["embedding"],
        forward=one.forward["embedding"],
        sent_forward=one.sent_forward.get("embedding", Counter()),
        kept=one.kept.get("embedding", 0),
    )
    head = Piece(
        parameters=one.parameters.get("head", 0),
        forward=one.forward["head"],
        backward=one.backward - layer.backward,
        update=one.update - layer.update,
        sent_forward=one.sent_forward.get("head", Counter()),
        sent_backward=one.sent_backward - layer.sent_backward,
        kept=one.kept.get("head", 0),
    )
    return embedding, head
