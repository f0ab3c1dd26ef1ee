"""Read a model of Hugging Face: config.json, and weights in safetensors or torch files, whole or in shards."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint import torch_file
from pretrain.errors import CheckpointError, DamageError
from pretrain.recipe.section import shown
from pretrain.tools.convert.formats.hugging_face_config import require_known, settings_of_config
from pretrain.tools.convert.formats.hugging_face_families import FAMILIES
from pretrain.tools.convert.lazy_tensor import LazyTensor, constant, equal_to
from pretrain.tools.convert.model_weights import (
    EMBEDDING,
    OUTPUT,
    ModelWeights,
    expected_shapes,
    mismatches,
    model_section,
    require_expected,
)
from pretrain.tools.convert.stored import safetensors_header, safetensors_tensors, torch_file_tensors
from pretrain.tools.convert.summary import CheckpointSummary, dtype_name, extent
from pretrain.tools.convert.weight_names import some_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.formats.hugging_face_families import Architecture


NAME = "Hugging Face"
CONFIG = "config.json"
_NAMES = ("model.safetensors", "pytorch_model.bin")
"""Names of the weights where they are one file; shards are listed in NAME.index.json."""

INDEX = ".index.json"
"""End of the name of the list of shards."""

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt"),
    *("added_tokens.json", "tokenizer.model", "chat_template.jinja"),
)

BUFFERS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|(attention|attn)\.(bias|masked_bias))$")
"""Masks and frequencies that old files of GPT-2 and GPT-NeoX hold among the weights."""


def describe(folder: Path) -> CheckpointSummary | None:
    """Describe the model in a folder, or return None if it is of another format.

    Raises:
        CheckpointError: a shard is missing, or a file holds objects that could run code.
        DamageError: a file is cut off, or no JSON.
    """
    found = weights_name(folder)
    if found is None:
        return None
    config = json_object(folder / CONFIG)
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in weight_files(folder, found):
        tensors |= {name: seen for name, seen in _tensors(file).items() if BUFFERS.search(name) is None}
    files, size = extent(folder)
    version = config.get("transformers_version")
    return CheckpointSummary(
        path=folder,
        format=format_name(found),
        version=None if version is None else f"transformers {version}",
        model=settings_of_config(config),
        parameters=sum(math.prod(shape) for shape, _ in tensors.values()),
        dtypes=tuple(sorted({dtype for _, dtype in tensors.values()})),
        contents=("weights",),
        files=files,
        size=size,
    )


def weights_name(folder: Path) -> str | None:
    """Return the name of the file of the weights, which may be in shards; None if the folder is of another format."""
    if not (folder / CONFIG).is_file():
        return None
    return next((name for name in _NAMES if (folder / name).is_file() or (folder / f"{name}{INDEX}").is_file()), None)


def format_name(name: str) -> str:
    """Return the format's name by that of the weights."""
    return f"{NAME}, {'safetensors' if name == _NAMES[0] else 'torch files'}"


def own_file(path: Path) -> Path:
    """Return a file of a model's folder; a link may lead into the folder, or to the blobs of the hub's cache.

    Those are `models--*/blobs` for the folder `models--*/snapshots/COMMIT`.

    Raises:
        CheckpointError: it is a link to somewhere else, which might be any file that the user can read.
    """
    folder, target = path.parent.resolve(), path.resolve()
    if not any(target.is_relative_to(place) for place in (folder, folder.parent.parent / "blobs")):
        msg = f"{path} is a link out of its folder, to {target}.\nCopy the file itself there."
        raise CheckpointError(msg)
    return path


def json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        DamageError: it is none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not valid JSON: {str(error)[:200]}"
        raise DamageError(msg) from error
    if not isinstance(value, dict):
        msg = f"{path} is not a JSON object.\nCopy it again."
        raise DamageError(msg)
    return value


def weight_files(folder: Path, name: str) -> list[Path]:
    """Return the files of the weights.

    Raises:
        CheckpointError: the index of shards names one that is not in the folder, or one is a link out of it.
        DamageError: the index is no index.
    """
    if (folder / name).is_file():
        return [own_file(folder / name)]
    index = folder / f"{name}{INDEX}"
    shards = weight_map(index)
    names = sorted(set(shards.values()))
    if missing := [shard for shard in names if "/" in shard or "\\" in shard or not (folder / shard).is_file()]:
        msg = f"{index} names files that are not in its folder: {some_of(missing)}.\nCopy them there."
        raise CheckpointError(msg)
    return [own_file(folder / shard) for shard in names]


def weight_map(index: Path) -> dict[str, str]:
    """Return the shard of every weight that an index names.

    Raises:
        DamageError: it is no index.
    """
    shards = json_object(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        msg = f"{index} is damaged: it has no `weight_map` from weights to files.\nCopy it again."
        raise DamageError(msg)
    return shards


def read(folder: Path, given: Mapping[str, Any]) -> ModelWeights | None:
    """Return the weights of a folder that `save_pretrained` of transformers has written, or the hub's.

    Args:
        folder: with config.json, and model.safetensors or pytorch_model.bin, whole or in shards.
        given: settings of the section `model` that replace those of config.json.

    Returns:
        the weights; None if the folder is of another format.

    Raises:
        CheckpointError: the model is none that we have, weights are missing, too many, or of other shapes, or a file
            is a link out of the folder.
        DamageError: a file is cut off or no such file.
    """
    name = weights_name(folder)
    if name is None:
        return None
    config = json_object(folder / CONFIG)
    require_known(folder / CONFIG, config, given)
    family = FAMILIES[config["model_type"]]
    model = model_section(folder / CONFIG, settings_of_config(config), given)
    if misfits := family.misfits(model):
        msg = (
            f"{folder / CONFIG} describes a {family.architecture}, and none has {', '.join(misfits)}.\n"
            "Correct the file, or what --set gives."
        )
        raise CheckpointError(msg)
    stored = _stored(folder, name, family)
    rows = _vocabulary(folder, config, family, stored)
    return require_expected(
        ModelWeights(
            path=folder,
            format=format_name(name),
            model=model,
            tensors=_imported(folder, family, model, rows, stored),
            vocab_size=rows,
            tokenizer=tuple(own_file(folder / file) for file in TOKENIZER_FILES if (folder / file).is_file()),
        )
    )


def _stored(folder: Path, name: str, family: Architecture) -> dict[str, LazyTensor]:
    """Return the weights in the files by their names in the whole model, without old files' masks."""
    stored: dict[str, LazyTensor] = {}
    for file in weight_files(folder, name):
        content = safetensors_tensors(file) if file.suffix == ".safetensors" else torch_file_tensors(file)
        if not isinstance(content, dict):
            msg = f"{file} does not map names to weights.\nCopy it again."
            raise DamageError(msg)
        found = {key: value for key, value in content.items() if BUFFERS.search(str(key)) is None}
        _require_weights(file, found, stored)
        stored |= found
    index = folder / f"{name}{INDEX}"
    if not (folder / name).is_file():
        _require_indexed(index, [key for key in weight_map(index) if BUFFERS.search(key) is None], stored)
    names = family.full_names(stored)
    if twice := [key for key, count in Counter(names).items() if count > 1]:
        msg = f"{folder} holds {some_of(twice)} under two names.\nKeep one of them."
        raise CheckpointError(msg)
    return dict(zip(names, stored.values(), strict=True))


def _require_weights(file: Path, found: Mapping[Any, Any], before: Collection[str]) -> None:
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, LazyTensor) or not value.shape:
            msg = f"{file} holds {shown(name)}, which is not a named weight.\nSave the model's state dict alone."
            raise CheckpointError(msg)
        if not value.dtype.is_floating_point:
            dtype = str(value.dtype).removeprefix("torch.")
            msg = f"{file} holds {shown(name)} in {dtype}: quantized weights are not read.\nConvert the original model."
            raise CheckpointError(msg)
        if name in before:
            msg = f"{file} holds {shown(name)}, and another shard does too.\nCopy the files again."
            raise DamageError(msg)


def _require_indexed(index: Path, names: Collection[str], stored: Collection[str]) -> None:
    if missing := [name for name in names if name not in stored]:
        msg = f"{index} names weights that are missing in its files: {some_of(missing)}.\nCopy the files again."
        raise DamageError(msg)


def _vocabulary(folder: Path, config: Mapping[str, Any], family: Architecture, stored: Mapping[str, LazyTensor]) -> int:
    """Return the rows of the embedding, as both the weights and config.json say."""
    [name] = family.names(EMBEDDING)
    if name not in stored:
        msg = f"{folder} holds no {name}.\nCopy the files of a {family.architecture} again."
        raise CheckpointError(msg)
    rows = stored[name].shape[0]
    if config.get("vocab_size", rows) != rows:
        given = shown(config["vocab_size"])
        msg = f"{folder / CONFIG} says vocab_size {given}, and {name} has {rows} rows.\nCorrect vocab_size there."
        raise CheckpointError(msg)
    return rows


def _imported(
    folder: Path, family: Architecture, model: ModelSection, rows: int, stored: dict[str, LazyTensor]
) -> dict[str, LazyTensor]:
    if model.num_layers > len(stored):
        msg = (
            f"{folder / CONFIG} says {model.num_layers} layers, and the files hold {len(stored)} weights.\n"
            "Copy the files again."
        )
        raise CheckpointError(msg)
    shapes = expected_shapes(model, rows)
    [embedding], [output] = family.names(EMBEDDING), family.names(OUTPUT)
    if output in stored and OUTPUT not in shapes:  # files of torch have both names of a tied embedding
        stored[embedding] = equal_to(stored[embedding], stored.pop(output), folder, (embedding, output))
    _require_expected(folder, family, model, shapes, stored)
    return {
        ours: family.imported(ours, _alike(folder, {name: stored[name] for name in family.names(ours)}), model)
        for ours in shapes
    }


def _require_expected(
    folder: Path,
    family: Architecture,
    model: ModelSection,
    shapes: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, LazyTensor],
) -> None:
    """Require the weights of the model, no others, and each part in its shape: the sum of parts does not tell all."""
    ours = {name: constant(shape, torch.float32, 0.0) for name, shape in shapes.items()}
    expected = {name: part.shape for name, part in family.export(ours, model).items()}
    if wrong := mismatches(expected, {name: tensor.shape for name, tensor in stored.items()}):
        msg = (
            f"{folder} does not hold the {family.architecture} of its config.json: {some_of(wrong)}.\n"
            "Copy the files again. What config.json says wrongly can be given by --set model.KEY=VALUE."
        )
        raise CheckpointError(msg)


def _alike(folder: Path, parts: Mapping[str, LazyTensor]) -> list[LazyTensor]:
    """Return the parts of one weight, which must have one dtype."""
    dtypes = {name: str(part.dtype).removeprefix("torch.") for name, part in parts.items()}
    if len(set(dtypes.values())) > 1:
        told = ", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
        msg = f"{folder} has parts of one weight in different dtypes: {told}.\nSave the model in one dtype."
        raise CheckpointError(msg)
    return list(parts.values())


def _tensors(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    if file.suffix == ".safetensors":
        header = safetensors_header(file)[0]
        return {name: (tuple(entry["shape"]), _dtype(entry["dtype"])) for name, entry in header.items()}
    state = torch_file.read(file)
    if not isinstance(state, dict):
        msg = f"{file} does not map names to weights.\nCopy it again."
        raise DamageError(msg)
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    once = {(tensor.data_ptr(), tensor.shape): name for name, tensor in tensors.items()}
    return {name: (tuple(tensors[name].shape), dtype_name(tensors[name].dtype)) for name in once.values()}


def _dtype(name: str) -> str:
    """Return a recipe's name of a dtype that safetensors calls F16 or BF16."""
    return name.lower() if name.startswith("B") else name.lower().replace("f", "fp", 1)
