"""Write a model of Hugging Face, with the files of its tokenizer."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pretrain.atomic_files import replacing
from pretrain.checkpoint import checksums
from pretrain.data.tokenizers.tokenizer import END_TOKENS
from pretrain.errors import CheckpointError
from pretrain.tools.convert.file_writers import SafetensorsFile
from pretrain.tools.convert.formats.hugging_face import CONFIG, INDEX, NAME, TOKENIZER_FILES, json_object, own_file
from pretrain.tools.convert.formats.hugging_face_config import config_of
from pretrain.tools.convert.formats.hugging_face_families import family_of
from pretrain.tools.convert.model_card import CARD, model_card
from pretrain.tools.convert.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.model_weights import FileLayout, ModelWeights

_SAFETENSORS = "model.safetensors"
# bytes: as much of each file that is being written is lost by an interruption; transformers 4 takes 5 GB
LARGEST_SHARD = 2_000_000_000
LEAST_SHARD = 256_000_000  # bytes up to which a model is not divided only to write its parts at once
_AT_ONCE = 4
_TOKENIZER_CONFIG, _WHOLE, _VOCAB, _MERGES = "tokenizer_config.json", "tokenizer.json", "vocab.json", "merges.txt"
_MAP, _ADDED = "special_tokens_map.json", "added_tokens.json"
_LARGEST = 100_000_000
_GENERATION = "generation_config.json"
SUMS = "SHA256SUMS"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def write(weights: ModelWeights, layout: FileLayout) -> Target:  # noqa: ARG001  the format has no layout
    """Return the files of a model that `from_pretrained` of transformers opens, of the architecture that fits it."""
    kind, family = family_of(weights.model)
    if misfits := family.misfits(weights.model):
        what = "which no supported architecture of Hugging Face can have"
        msg = f"{weights.path} has {', '.join(misfits)}, {what} (nearest: {family.architecture}).\n"
        msg += "Convert it to pretrain or torch_dist."
        raise CheckpointError(msg)
    if family.always_has_biases and not weights.model.add_bias_linear:
        weights = weights.with_zero_biases()
    rows = weights.tokens
    tensors = family.export(weights.with_vocabulary(rows).tensors, weights.model)
    tokenizer = tokenizer_files(weights.tokenizer, weights.model.max_position_embeddings)
    # of a source of Hugging Face ids are kept; with another tokenizer they mean other tokens
    is_kept = weights.format.startswith(NAME) and all(file.parent == weights.path for file in weights.tokenizer)
    kept = json_object(weights.path / CONFIG) if is_kept else {}
    told = _special_ids(tokenizer) | {name: kept[name] for name in _IDS if name in kept}
    ids = {name: _in_vocabulary(rows, found) for name, found in told.items()}
    config = config_of(kind, family, weights.model, rows, _dtype(tensors), ids)
    generation = _json({name: found for name, found in ids.items() if found is not None})
    if is_kept and (weights.path / _GENERATION).is_file():
        generation = _content_of(own_file(weights.path / _GENERATION))
    files = _files(tensors)
    small = {
        CONFIG: _json(config),
        _GENERATION: generation,
        **tokenizer,
        CARD: _card(weights, config, files, tokenizer),
    }
    if len(files) > 1:
        small[f"{_SAFETENSORS}{INDEX}"] = _json(_index(files))
    return Target(files=files, small=small, finish=_write_sums)


def _card(
    weights: ModelWeights, config: Mapping[str, Any], files: Sequence[SafetensorsFile], tokenizer: Mapping[str, bytes]
) -> bytes:
    """Return the model's card; that of a source of Hugging Face is kept, since a person wrote it."""
    own = weights.path / CARD
    if weights.format.startswith(NAME) and own.is_file():
        return _content_of(own_file(own))
    parameters = sum(tensor.nbytes // tensor.dtype.itemsize for file in files for tensor in file.tensors.values())
    return model_card(
        weights, config["architectures"][0], parameters, config["dtype"], has_tokenizer=_TOKENIZER_CONFIG in tokenizer
    )


def _write_sums(folder: Path, written: Mapping[str, Any]) -> None:  # noqa: ARG001  the target's call
    """Write the SHA-256 of each file, as sha256sum reads it: hubs compare with no other."""
    found = (entry.name for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    names = sorted(set(found) - {SUMS, checksums.FILE})  # which an interrupted conversion may have left, and ours

    def digest(name: str) -> str:
        with (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        lines = [f"{sha256}  {name}\n" for name, sha256 in zip(names, pool.map(digest, names), strict=True)]
    with replacing(folder / SUMS, error=None) as file:
        file.write("".join(lines).encode())


def _in_vocabulary(rows: int, found: object) -> int | list[int] | None:
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
    sizes: dict[torch.dtype, int] = {}
    for tensor in tensors.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=sizes.__getitem__)


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def tokenizer_files(paths: Iterable[Path], max_length: int) -> dict[str, bytes]:
    """Return the content of a tokenizer's files under transformers' names, whatever their own names are.

    `max_length` are the tokens of the model's longest text. It is not in the generation's settings: transformers would
    warn of it wherever `max_new_tokens` is given.
    """
    files = {}
    for path in paths:
        content = _content_of(path)
        files[_standard_name(path, content)] = content
    # without it AutoTokenizer would take the architecture's tokenizer, and change what the tokenizer.json says
    if _TOKENIZER_CONFIG not in files and (_WHOLE in files or {_VOCAB, _MERGES} <= files.keys()):
        kind = "PreTrainedTokenizerFast" if _WHOLE in files else "GPT2Tokenizer"
        ids = _ids(files)
        end = next((token for token in END_TOKENS if token in ids), None)
        config = {"tokenizer_class": kind, "model_max_length": max_length} | ({} if end is None else {"eos_token": end})
        files[_TOKENIZER_CONFIG] = json.dumps(config, indent=2).encode()
    return files


def _content_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}.\nPut it back."
        raise CheckpointError(msg) from error
    if len(content) > _LARGEST:
        msg = f"{path} is larger than {_LARGEST // 1_000_000} MB: it cannot be a tokenizer file.\nRemove it."
        raise CheckpointError(msg)
    return content


def _special_ids(files: Mapping[str, bytes]) -> dict[str, int | None]:
    """Return the ids of special tokens as a tokenizer's files tell them; None is not known."""
    told = _object(files.get(_MAP)) | _object(files.get(_TOKENIZER_CONFIG))
    ids = _ids(files)
    found = {}
    for name in _IDS:
        token = told.get(name.removesuffix("_id"))
        token = token.get("content") if isinstance(token, dict) else token
        found[name] = ids.get(token) if isinstance(token, str) else None
    return found


def _standard_name(path: Path, content: bytes) -> str:
    if path.name in TOKENIZER_FILES or path.suffix not in {".json", ".txt"}:
        return path.name
    if path.suffix == ".txt":
        return _MERGES
    return _WHOLE if isinstance(_object(content).get("model"), dict) else _VOCAB


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
    """Parse a JSON object; {} if it is not one, since a tokenizer's file is copied whatever it contains."""
    try:
        value = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
