"""Read a model of Hugging Face: config.json, and weights in safetensors or torch files, whole or in shards."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from pretrain.checkpoint import torch_file
from pretrain.errors import CheckpointError
from pretrain.recipe.section import shown
from pretrain.report.plain_text import some_of
from pretrain.tools.convert import model_weights
from pretrain.tools.convert.formats.hugging_face_config import require_known, settings_of_config
from pretrain.tools.convert.formats.hugging_face_families import FAMILIES
from pretrain.tools.convert.lazy_tensor import LazyTensor, constant, equal_to
from pretrain.tools.convert.model_weights import EMBEDDING, OUTPUT, CheckpointSummary, ModelWeights
from pretrain.tools.convert.stored import damaged, safetensors_header, safetensors_tensors, torch_file_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.formats.hugging_face_families import Architecture

NAME = "Hugging Face"
CONFIG = "config.json"
_NAMES = ("model.safetensors", "pytorch_model.bin")  # the weights as one file; shards are listed in NAME.index.json
INDEX = ".index.json"
_MOST_NEXT = 8  # layers that predict tokens after the next; the published models have one
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt"),
    *("added_tokens.json", "tokenizer.model", "chat_template.jinja"),
)
# masks and frequencies that old files of GPT-2 and GPT-NeoX hold among the weights
_BUFFERS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|(attention|attn)\.(bias|masked_bias))$")


def describe(folder: Path) -> CheckpointSummary | None:
    """Describe the model in a folder, or return None if it is of another format."""
    found = _weights_name(folder)
    if found is None:
        return None
    config = json_object(folder / CONFIG)
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in _weight_files(folder, found):
        tensors |= {name: seen for name, seen in _tensors(file).items() if _BUFFERS.search(name) is None}
    version = config.get("transformers_version")
    return CheckpointSummary(
        path=folder,
        format=_format_name(found),
        version=None if version is None else f"transformers {version}",
        model=settings_of_config(config),
        parameters=sum(math.prod(shape) for shape, _ in tensors.values()),
        dtypes=tuple(sorted({dtype for _, dtype in tensors.values()})),
        contents=("weights",),
    )


def _weights_name(folder: Path) -> str | None:
    if not (folder / CONFIG).is_file():
        return None
    return next((name for name in _NAMES if (folder / name).is_file() or (folder / f"{name}{INDEX}").is_file()), None)


def _format_name(name: str) -> str:
    return f"{NAME}, {'safetensors' if name == _NAMES[0] else 'torch files'}"


def own_file(path: Path) -> Path:
    """Return a file of a model's folder; a link out of it might be any file that the user can read."""
    # the hub's cache has links from models--*/snapshots/COMMIT to models--*/blobs
    folder, target = path.parent.resolve(), path.resolve()
    if not any(target.is_relative_to(place) for place in (folder, folder.parent.parent / "blobs")):
        msg = f"{path} is a link to {target}, outside of its folder.\nReplace the link by a copy of the file."
        raise CheckpointError(msg)
    return path


def json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"is not valid JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise damaged(path, "is not a JSON object")
    return value


def _weight_files(folder: Path, name: str) -> list[Path]:
    if (folder / name).is_file():
        return [own_file(folder / name)]
    index = folder / f"{name}{INDEX}"
    shards = _weight_map(index)
    names = sorted(set(shards.values()))
    if missing := [shard for shard in names if "/" in shard or "\\" in shard or not (folder / shard).is_file()]:
        msg = f"{index} names files that are not in its folder: {some_of(missing)}.\nCopy them there."
        raise CheckpointError(msg)
    return [own_file(folder / shard) for shard in names]


def _weight_map(index: Path) -> dict[str, str]:
    shards = json_object(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise damaged(index, "is damaged: it has no `weight_map` from weights to files")
    return shards


def read(folder: Path, given: Mapping[str, Any]) -> ModelWeights | None:
    """Return the weights of a folder that `save_pretrained` of transformers has written, or the hub's."""
    name = _weights_name(folder)
    if name is None:
        return None
    config = json_object(folder / CONFIG)
    require_known(folder / CONFIG, config, given)
    family = FAMILIES[config["model_type"]]
    model = model_weights.model_section(folder / CONFIG, settings_of_config(config), given)
    if misfits := family.misfits(model):
        msg = f"{folder / CONFIG} describes a {family.architecture}, which cannot have {', '.join(misfits)}.\n"
        msg += "Correct the file, or the values of --set."
        raise CheckpointError(msg)
    stored = _without_next_tokens(_stored(folder, name, family), config)
    stored = family.one_by_one(stored, model)
    rows = _vocabulary(folder, config, family, stored)
    in_files = model.model_copy(update={"add_bias_linear": True}) if family.always_has_biases else model
    weights = ModelWeights(
        path=folder,
        format=_format_name(name),
        model=model,
        tensors=_imported(folder, family, in_files, rows, stored),
        vocab_size=rows,
        tokenizer=tuple(own_file(folder / file) for file in TOKENIZER_FILES if (folder / file).is_file()),
    )
    return model_weights.require_expected(weights)


def _stored(folder: Path, name: str, family: Architecture) -> dict[str, LazyTensor]:
    """Return the weights in the files by their names in the whole model, without old files' masks."""
    stored: dict[str, LazyTensor] = {}
    for file in _weight_files(folder, name):
        content = safetensors_tensors(file) if file.suffix == ".safetensors" else torch_file_tensors(file)
        if not isinstance(content, dict):
            raise damaged(file, "does not map names to weights")
        found = {key: value for key, value in content.items() if _BUFFERS.search(str(key)) is None}
        _require_weights(file, found, stored)
        stored |= found
    if not (folder / name).is_file():
        index = folder / f"{name}{INDEX}"
        if missing := [key for key in _weight_map(index) if _BUFFERS.search(key) is None and key not in stored]:
            raise damaged(index, f"names weights that are missing in its files: {some_of(missing)}")
    names = family.full_names(stored)
    if twice := [key for key, count in Counter(names).items() if count > 1]:
        msg = f"{folder} holds {some_of(twice)} under two names.\nKeep one of them."
        raise CheckpointError(msg)
    return dict(zip(names, stored.values(), strict=True))


def _without_next_tokens(stored: Mapping[str, LazyTensor], config: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """Leave out GLM's layers behind the last, which predict the token after the next, as transformers does."""
    last, more = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    if config["model_type"] != "glm4_moe" or type(last) is not int or type(more) is not int:
        return dict(stored)
    layers = range(last, last + min(more, _MOST_NEXT))
    begins = tuple(f"model.layers.{number}." for number in layers)
    return {name: tensor for name, tensor in stored.items() if not name.startswith(begins)}


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
            raise damaged(file, f"holds {shown(name)}, and another shard does too")


def _vocabulary(folder: Path, config: Mapping[str, Any], family: Architecture, stored: Mapping[str, LazyTensor]) -> int:
    [name] = family.names(EMBEDDING)
    if name not in stored:
        msg = f"{folder} holds no {name}.\nCopy the files of a {family.architecture} again."
        raise CheckpointError(msg)
    rows = stored[name].shape[0]
    if config.get("vocab_size", rows) != rows:
        given = shown(config["vocab_size"])
        msg = f"{folder / CONFIG} says vocab_size {given}, but {name} has {rows} rows.\nCorrect vocab_size there."
        raise CheckpointError(msg)
    return rows


def _imported(
    folder: Path, family: Architecture, model: ModelSection, rows: int, stored: dict[str, LazyTensor]
) -> dict[str, LazyTensor]:
    if model.num_layers > len(stored):
        found = f"{folder / CONFIG} says {model.num_layers} layers, but the files hold only {len(stored)} weights"
        msg = f"{found}.\nCopy the files again."
        raise CheckpointError(msg)
    if (model.num_experts or 0) > len(stored):
        found = f"{folder / CONFIG} says {model.num_experts} experts, but the files hold only {len(stored)} weights"
        msg = f"{found}.\nCopy the files again."
        raise CheckpointError(msg)
    shapes = model_weights.expected_shapes(model, rows)
    [embedding], [output] = family.names(EMBEDDING), family.names(OUTPUT)
    if output in stored and OUTPUT not in shapes:  # files of torch have both names of a tied embedding
        stored[embedding] = equal_to(stored[embedding], stored.pop(output), folder, (embedding, output))
    # the parts of a weight one by one, since their sum does not tell all
    nothing = {name: constant(shape, torch.float32, 0.0) for name, shape in shapes.items()}
    expected = {name: part.shape for name, part in family.export(nothing, model).items()}
    if wrong := model_weights.mismatches(expected, {name: tensor.shape for name, tensor in stored.items()}):
        msg = f"{folder} does not hold the {family.architecture} of its config.json: {some_of(wrong)}.\n"
        msg += "Copy the files again. If config.json is wrong, correct it by --set model.KEY=VALUE."
        raise CheckpointError(msg)
    return {
        ours: family.imported(
            ours,
            _of_one_dtype(folder, {name: stored[name] for name in family.names(ours, model.num_experts or 0)}),
            model,
        )
        for ours in shapes
    }


def _of_one_dtype(folder: Path, parts: Mapping[str, LazyTensor]) -> list[LazyTensor]:
    dtypes = {name: str(part.dtype).removeprefix("torch.") for name, part in parts.items()}
    if len(set(dtypes.values())) > 1:
        found = ", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
        msg = f"{folder} has parts of one weight in different dtypes: {found}.\nSave the model in one dtype."
        raise CheckpointError(msg)
    return list(parts.values())


def _tensors(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    if file.suffix == ".safetensors":
        header = safetensors_header(file)[0]
        return {name: (tuple(entry["shape"]), _dtype(entry["dtype"])) for name, entry in header.items()}
    state = torch_file.read(file)
    if not isinstance(state, dict):
        raise damaged(file, "does not map names to weights")
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    once = {(tensor.data_ptr(), tensor.shape): name for name, tensor in tensors.items()}
    return {name: (tuple(tensors[name].shape), model_weights.dtype_name(tensors[name].dtype)) for name in once.values()}


def _dtype(name: str) -> str:
    """Return a recipe's name of a dtype that safetensors calls F16 or BF16."""
    return name.lower() if name.startswith("B") else name.lower().replace("f", "fp", 1)
