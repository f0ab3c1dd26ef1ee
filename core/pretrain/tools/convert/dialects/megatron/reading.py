"""Reading: parts of ranks, stages and virtual stages become whole weights by our names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError
from pretrain.tools.convert.dialects.hugging_face.tied import equal_to
from pretrain.tools.convert.dialects.megatron.names import has_old_order, our_name
from pretrain.tools.convert.dialects.megatron.qkv_order import qkv_order
from pretrain.tools.convert.dialects.megatron.settings import schedule_of, settings_of, vocab_size_of, whole_number
from pretrain.tools.convert.dialects.rank_parts import by_name, not_known, require_one_save, weights_in
from pretrain.tools.convert.formats.location import RELEASE
from pretrain.tools.convert.formats.megatron_ranks import (
    FILE,
    all_ranks,
    chunks_of,
    is_copy,
    rank_folders,
    rank_with_model,
)
from pretrain.tools.convert.formats.megatron_weights import args_of, number_of_layers, require_sizes, whole_shape
from pretrain.tools.convert.weights.model_weights import (
    EMBEDDING,
    OUTPUT,
    ModelWeights,
    model_section,
    require_expected,
)
from pretrain.tools.convert.weights.stored import torch_file_tensors
from pretrain.tools.convert.weights.tensor_parallel import merged

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.tools.convert.formats.megatron_ranks import Rank
    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor

_Parts = dict[str, list["LazyTensor"]]
"""Name of a weight -> its part on each tensor-parallel rank."""


def read(folder: Path, given: Mapping[str, Any]) -> ModelWeights | None:
    """Return the weights of a checkpoint of Megatron-LM, or None if the folder is of another format.

    Args:
        folder: `release/` or `iter_0000000/`.
        given: settings of the section `model` that the files do not tell; they win. Releases of 2019 do not tell
            num_attention_heads.

    Raises:
        CheckpointError: ranks or layers are missing, parts do not belong together, or the model is not one of ours.
        DamageError: a file is damaged.
    """
    names = rank_folders(folder)
    if not names:
        return None
    args = args_of(_state(folder / names[0] / FILE))
    ranks = all_ranks(folder, names, args)
    tensor, stages = max(rank.tensor for rank in ranks) + 1, max(rank.stage for rank in ranks) + 1
    if any(rank.expert for rank in ranks):
        msg = f"{folder} is of a mixture of experts (num_experts).\nRecipes have no such model: it cannot be converted."
        raise CheckpointError(msg)
    states = {(rank.stage, rank.tensor): _state(rank.file) for rank in ranks}
    first = states[0, 0]
    require_one_save([(rank.file, states[rank.stage, rank.tensor]) for rank in ranks])
    is_untied = {**args, **given}.get("untie_embeddings_and_output_weights")
    parts, old_order = _parts(folder, _chunks_of_stages(ranks, states, tensor, stages), is_untied=is_untied)
    shapes = {name: whole_shape(name, each[0].shape, tensor) for name, each in parts.items()}
    sizes = {
        "model_parallel_size": tensor,
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": stages,
    }
    require_sizes(folder, args, sizes | {"num_layers": number_of_layers(shapes)})
    model = model_section(folder, settings_of(folder, args, shapes), given)
    ordered = qkv_order(folder, first.get("checkpoint_version", 0), args, model, tensor) if old_order else None
    tensors = {
        name: merged(name, [ordered(part) for part in each] if ordered and name in old_order else each, model)
        for name, each in parts.items()
    }
    rows = parts[EMBEDDING][0].shape[0] * tensor if EMBEDDING in parts else 0
    weights = ModelWeights(
        path=folder,
        format="Megatron-LM, one file a rank",
        model=model,
        tensors=tensors,
        vocab_size=vocab_size_of(args, rows),
        iteration=None if folder.name == RELEASE else whole_number(first, "iteration"),
        consumed_samples=whole_number(args, "consumed_train_samples"),
        schedule=schedule_of(first),
    )
    return require_expected(weights)


def _chunks_of_stages(
    ranks: list[Rank], states: Mapping[tuple[int, int], dict[str, Any]], tensor: int, stages: int
) -> list[list[list[tuple[Path, Any]]]]:
    """Return file and state by virtual stage, stage and tensor-parallel rank, in the order of the model's layers.

    Chunk v of stage p comes after the chunks v of the stages before it, and after all stages' chunks before v
    (get_transformer_layer_offset in megatron/core/transformer/transformer_layer.py).

    Raises:
        CheckpointError: the stages have different numbers of chunks.
    """
    files = {(rank.stage, rank.tensor): rank.file for rank in ranks}
    chunks = {place: chunks_of(state) for place, state in states.items()}
    count = len(chunks[0, 0])
    for place, found in chunks.items():
        if len(found) != count:
            msg = f"{files[place]} has {len(found)} chunks of the model, and {files[0, 0]} has {count}."
            raise CheckpointError(msg + "\nCopy the files of one checkpoint together.")
    return [
        [[(files[stage, rank], chunks[stage, rank][chunk]) for rank in range(tensor)] for stage in range(stages)]
        for chunk in range(count)
    ]


def _parts(folder: Path, chunks: list[list[list[tuple[Path, Any]]]], *, is_untied: object) -> tuple[_Parts, set[str]]:
    """Return all parts by our names, and which of them have an order of rows that depends on the version.

    Args:
        folder: of the checkpoint, for errors.
        chunks: file and state by virtual stage, stage and rank.
        is_untied: untie_embeddings_and_output_weights; None where it is not known.

    Raises:
        CheckpointError: a weight is not known, a layer of a stage is missing, or the embedding's copy differs.
    """
    parts: _Parts = {}
    old_order: set[str] = set()
    copies: set[str] = set()
    layers = 0
    for number, stages in enumerate(chunks):
        for stage, ranks in enumerate(stages):
            found = by_name([(path, weights_in(path, state)) for path, state in ranks])
            if (number, stage) != (0, 0):
                copies |= {name for name in found if is_copy(name, is_tied=is_untied is False)}
            ours = {name: OUTPUT if name in copies else our_name(name, layers) for name in found}
            if unknown := [name for name, our in ours.items() if our is None]:
                raise not_known(ranks[0][0], unknown)
            for name, our in ours.items():
                if our is None or our in parts:
                    msg = f"{folder} has {our} twice: {ranks[0][0]} holds it once more as {name[:100]}."
                    raise CheckpointError(msg + "\nCopy the files of one checkpoint together.")
                parts[our] = found[name]
                if has_old_order(name):
                    old_order.add(our)
            layers += _layers_of(ranks[0][0], layers, [our for our in ours.values() if our is not None])
    if copies and EMBEDDING in parts and is_untied is not True:
        names = (EMBEDDING, min(copies))
        output = parts.pop(OUTPUT)
        pairs = zip(parts[EMBEDDING], output, strict=True)
        parts[EMBEDDING] = [equal_to(part, copy, folder, names) for part, copy in pairs]
    return parts, old_order


def _layers_of(path: Path, before: int, names: list[str]) -> int:
    """Return the number of layers of one chunk.

    Raises:
        CheckpointError: one between them is missing.
    """
    numbers = {int(name.split(".")[2]) - before for name in names if name.startswith("decoder.layers.")}
    if numbers and max(numbers) + 1 != len(numbers):
        missing = next(number for number in range(len(numbers)) if number not in numbers)
        msg = f"{path} has no weights of its layer {missing}, and has some of later ones.\nCopy the file again."
        raise CheckpointError(msg)
    return len(numbers)
