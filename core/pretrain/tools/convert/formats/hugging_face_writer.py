"""Write a model of Hugging Face, with the files of its tokenizer."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from pretrain.data.tokenizers.tokenizer import END_TOKENS
from pretrain.errors import CheckpointError
from pretrain.tools.convert.file_writers import SafetensorsFile
from pretrain.tools.convert.formats.hugging_face import CONFIG, INDEX, NAME, TOKENIZER_FILES, json_object, own_file
from pretrain.tools.convert.formats.hugging_face_config import config_of
from pretrain.tools.convert.formats.hugging_face_families import family_of
from pretrain.tools.convert.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import torch

    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.model_weights import ModelWeights
    from pretrain.tools.convert.target import TargetLayout


_SAFETENSORS = "model.safetensors"
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
            f"{weights.path} has {', '.join(misfits)}, "
            f"which no supported architecture of Hugging Face has; the nearest is {family.architecture}.\n"
            "Convert it to pretrain or torch_dist."
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
        small[f"{_SAFETENSORS}{INDEX}"] = _json(_index(files))
    return Target(files=files, small=small)


def _within(rows: int, found: object) -> int | list[int] | None:
    """Return an id, or several, if the vocabulary has them."""
    ids = found if isinstance(found, list) else [found]
    return found if ids and all(type(each) is int and each in range(rows) for each in ids) else None  # type: ignore[return-value]


def _files(tensors: Mapping[str, LazyTensor]) -> list[SafetensorsFile]:
    shards = list(_shards(tensors))
    if len(shards) == 1:
        return [SafetensorsFile(_SAFETENSORS, shards[0])]
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


_TOKENIZER_CONFIG, _WHOLE, _VOCAB, _MERGES = "tokenizer_config.json", "tokenizer.json", "vocab.json", "merges.txt"
_MAP, _ADDED = "special_tokens_map.json", "added_tokens.json"
_LARGEST = 100_000_000


def tokenizer_files(paths: Iterable[Path]) -> dict[str, bytes]:
    """Return the content of a tokenizer's files under transformers' names, whatever their own names are.

    Without a tokenizer_config.json AutoTokenizer would take the architecture's tokenizer, and change what the
    tokenizer.json says; so one is added.

    Raises:
        CheckpointError: a file cannot be read, or is larger than 100 MB.
    """
    files = {}
    for path in paths:
        content = content_of(path)
        files[_name(path, content)] = content
    if _TOKENIZER_CONFIG not in files and (_WHOLE in files or {_VOCAB, _MERGES} <= files.keys()):
        kind = "PreTrainedTokenizerFast" if _WHOLE in files else "GPT2Tokenizer"
        end = _end_token(_ids(files))
        config = {"tokenizer_class": kind} | ({} if end is None else {"eos_token": end})
        files[_TOKENIZER_CONFIG] = json.dumps(config, indent=2).encode()
    return files


def content_of(path: Path) -> bytes:
    """Return the content of a file that is copied into the target.

    Raises:
        CheckpointError: it cannot be read, or is larger than 100 MB.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}.\nPut it back."
        raise CheckpointError(msg) from error
    if len(content) > _LARGEST:
        msg = f"{path} is larger than {_LARGEST // 1_000_000} MB, too large for a tokenizer file.\nRemove it."
        raise CheckpointError(msg)
    return content


def special_ids(files: Mapping[str, bytes]) -> dict[str, int | None]:
    """Return `bos_token_id` and `eos_token_id` as a tokenizer's files tell them; None is not known."""
    told = _object(files.get(_MAP)) | _object(files.get(_TOKENIZER_CONFIG))
    ids = _ids(files)
    found = {}
    for name in ("bos", "eos"):
        token = told.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        found[f"{name}_token_id"] = ids.get(token) if isinstance(token, str) else None
    return found


def _name(path: Path, content: bytes) -> str:
    """Return transformers' name of a file, which has any name where a recipe names it."""
    if path.name in TOKENIZER_FILES or path.suffix not in {".json", ".txt"}:
        return path.name
    if path.suffix == ".txt":
        return _MERGES
    return _WHOLE if isinstance(_object(content).get("model"), dict) else _VOCAB


def _end_token(ids: Mapping[str, int]) -> str | None:
    return next((token for token in END_TOKENS if token in ids), None)


def _ids(files: Mapping[str, bytes]) -> dict[str, int]:
    """Return the id of every token of a vocabulary that is a mapping, and of the added ones."""
    whole = _object(files.get(_WHOLE))
    model, added = whole.get("model"), whole.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids: dict[str, Any] = dict(vocab) if isinstance(vocab, dict) else {}
    ids |= _object(files.get(_VOCAB)) | _object(files.get(_ADDED))
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict):
            ids[str(token.get("content"))] = token.get("id")
    return {token: number for token, number in ids.items() if type(number) is int}


def _object(content: bytes | None) -> dict[str, Any]:
    """Return an object; {} where there is none: a tokenizer's file is copied whatever is in it."""
    try:
        value = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


GENERATION = "generation_config.json"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def kept_ids(weights: ModelWeights) -> dict[str, Any]:
    """Return the ids in the source's config.json, which may be lists, or null; {} if nothing is kept.

    Raises:
        DamageError: it is no JSON.
    """
    config = json_object(weights.path / CONFIG) if _is_kept(weights) else {}
    return {name: config[name] for name in _IDS if name in config}


def kept_generation(weights: ModelWeights) -> bytes | None:
    """Return the source's generation_config.json; None if it has none, or nothing is kept.

    Raises:
        CheckpointError: it cannot be read, is too large, or a link out of its folder.
    """
    path = weights.path / GENERATION
    return content_of(own_file(path)) if _is_kept(weights) and path.is_file() else None


def _is_kept(weights: ModelWeights) -> bool:
    """Say whether the source is of Hugging Face; with another tokenizer its ids mean other tokens."""
    return weights.format.startswith(NAME) and all(file.parent == weights.path for file in weights.tokenizer)
