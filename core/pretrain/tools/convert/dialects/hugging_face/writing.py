"""A model of Hugging Face, written from our weights."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError
from pretrain.tools.convert.conversion.planned_files import Target
from pretrain.tools.convert.conversion.safetensors_writer import SafetensorsFile
from pretrain.tools.convert.dialects.hugging_face.families import family_of
from pretrain.tools.convert.dialects.hugging_face.kept_files import GENERATION, kept_generation, kept_ids
from pretrain.tools.convert.dialects.hugging_face.tokenizer_files import special_ids, tokenizer_files
from pretrain.tools.convert.dialects.hugging_face.written_config import config_of
from pretrain.tools.convert.formats.hugging_face import CONFIG, INDEX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from pretrain.tools.convert.conversion.planned_files import TargetLayout
    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor
    from pretrain.tools.convert.weights.model_weights import ModelWeights

_WHOLE = "model.safetensors"
LARGEST_SHARD = 2_000_000_000
"""Bytes: as much of each file that is being written is lost by an interruption. transformers 4 takes 5 GB."""

LEAST_SHARD = 256_000_000
"""Bytes up to which a model is not divided only to write its parts at once."""

_AT_ONCE = 4


def write(weights: ModelWeights, layout: TargetLayout) -> Target:
    """Return the files of a model that `from_pretrained` of transformers opens.

    The architecture is that of the model's settings: GPT-2 with learned positions, GPT-NeoX with rope and LayerNorm,
    Llama or Qwen 2 with rope and RMSNorm.

    Raises:
        CheckpointError: no architecture has the model, or a layout is given.
    """
    if (layout.tensor, layout.pipeline) != (1, 1):
        msg = "a model of Hugging Face is not divided among ranks.\nLeave out the sizes of the layout."
        raise CheckpointError(msg)
    kind, family = family_of(weights.model)
    if misfits := family.misfits(weights.model):
        msg = (
            f"{weights.path} has {', '.join(misfits)}, and no architecture of Hugging Face that is known here "
            f"has that together with its other settings; the nearest is {family.architecture}.\n"
            "Formats that hold it are pretrain and torch_dist."
        )
        raise CheckpointError(msg)
    rows = weights.tokens
    tensors = family.export(weights.with_vocabulary(rows).tensors, weights.model)
    tokenizer = tokenizer_files(weights.tokenizer)
    ids = {name: _within(rows, found) for name, found in (special_ids(tokenizer) | kept_ids(weights)).items()}
    config = config_of(kind, family, weights.model, rows, _dtype(tensors), ids)
    generation = kept_generation(weights)
    if generation is None:
        generation = _json({name: found for name, found in ids.items() if found is not None})
    files = _files(tensors)
    small = {CONFIG: _json(config), GENERATION: generation, **tokenizer}
    if len(files) > 1:
        small[f"{_WHOLE}{INDEX}"] = _json(_index(files))
    return Target(files=files, small=small)


def _within(rows: int, found: object) -> int | list[int] | None:
    """Return an id, or several, if the vocabulary has them."""
    ids = found if isinstance(found, list) else [found]
    return found if ids and all(type(each) is int and each in range(rows) for each in ids) else None  # type: ignore[return-value]


def _files(tensors: Mapping[str, LazyTensor]) -> list[SafetensorsFile]:
    shards = list(_shards(tensors))
    if len(shards) == 1:
        return [SafetensorsFile(_WHOLE, shards[0])]
    return [
        SafetensorsFile(f"model-{number:05d}-of-{len(shards):05d}.safetensors", shard)
        for number, shard in enumerate(shards, 1)
    ]


def _shards(tensors: Mapping[str, LazyTensor]) -> Iterator[dict[str, LazyTensor]]:
    """Yield parts in order, as many as are written at once or more; a larger tensor is a part of its own."""
    total = sum(tensor.nbytes for tensor in tensors.values())
    limit = min(LARGEST_SHARD, max(LEAST_SHARD, -(-total // _AT_ONCE)))
    shard: dict[str, LazyTensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if shard and size + tensor.nbytes > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def _index(files: list[SafetensorsFile]) -> dict[str, Any]:
    tensors = [tensor for file in files for tensor in file.tensors.values()]
    metadata = {
        "total_parameters": sum(tensor.nbytes // tensor.dtype.itemsize for tensor in tensors),
        "total_size": sum(tensor.nbytes for tensor in tensors),
    }
    return {"metadata": metadata, "weight_map": {name: file.name for file in files for name in file.tensors}}


def _dtype(tensors: Mapping[str, LazyTensor]) -> torch.dtype:
    """Return the dtype of most bytes; norms may have another."""
    sizes = Counter[Any]()
    for tensor in tensors.values():
        sizes[tensor.dtype] += tensor.nbytes
    [(dtype, _)] = sizes.most_common(1)
    return dtype  # type: ignore[no-any-return]


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
