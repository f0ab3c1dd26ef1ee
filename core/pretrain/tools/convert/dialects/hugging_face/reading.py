"""A model of Hugging Face, read into our weights."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from pretrain.errors import CheckpointError, DamageError
from pretrain.recipe.section import shown
from pretrain.tools.convert.dialects.hugging_face.families import FAMILIES
from pretrain.tools.convert.dialects.hugging_face.refused import require_known
from pretrain.tools.convert.dialects.hugging_face.tied import equal_to
from pretrain.tools.convert.dialects.hugging_face.tokenizer_files import FILES
from pretrain.tools.convert.formats.hugging_face import (
    BUFFERS,
    CONFIG,
    INDEX,
    format_name,
    json_object,
    own_file,
    weight_files,
    weight_map,
    weights_name,
)
from pretrain.tools.convert.formats.hugging_face_config import settings_of_config
from pretrain.tools.convert.weights.lazy_tensor import LazyTensor, constant
from pretrain.tools.convert.weights.model_weights import (
    EMBEDDING,
    OUTPUT,
    ModelWeights,
    expected_shapes,
    model_section,
    require_expected,
)
from pretrain.tools.convert.weights.stored import safetensors_tensors, torch_file_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.dialects.hugging_face.families import Family

_SHOWN = 3


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
            tokenizer=tuple(own_file(folder / file) for file in FILES if (folder / file).is_file()),
        )
    )


def _stored(folder: Path, name: str, family: Family) -> dict[str, LazyTensor]:
    """Return the weights in the files by their names in the whole model, without old files' masks."""
    stored: dict[str, LazyTensor] = {}
    for file in weight_files(folder, name):
        content = safetensors_tensors(file) if file.suffix == ".safetensors" else torch_file_tensors(file)
        if not isinstance(content, dict):
            msg = f"{file} holds no weights by name.\nCopy it again."
            raise DamageError(msg)
        found = {key: value for key, value in content.items() if BUFFERS.search(str(key)) is None}
        _require_weights(file, found, stored)
        stored |= found
    index = folder / f"{name}{INDEX}"
    if not (folder / name).is_file():
        _require_indexed(index, [key for key in weight_map(index) if BUFFERS.search(key) is None], stored)
    names = family.full_names(stored)
    if twice := [key for key, count in Counter(names).items() if count > 1]:
        msg = f"{folder} holds {_first(twice)} under two names.\nKeep one of them."
        raise CheckpointError(msg)
    return dict(zip(names, stored.values(), strict=True))


def _require_weights(file: Path, found: Mapping[Any, Any], before: Collection[str]) -> None:
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, LazyTensor) or not value.shape:
            msg = f"{file} holds {shown(name)}, which is no weight by its name.\nSave the model's state dict alone."
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
        msg = f"{index} names weights that its files do not hold: {_first(missing)}.\nCopy the files again."
        raise DamageError(msg)


def _vocabulary(folder: Path, config: Mapping[str, Any], family: Family, stored: Mapping[str, LazyTensor]) -> int:
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
    folder: Path, family: Family, model: ModelSection, rows: int, stored: dict[str, LazyTensor]
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
    family: Family,
    model: ModelSection,
    shapes: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, LazyTensor],
) -> None:
    """Require the weights of the model, no others, and each part in its shape: the sum of parts does not tell all."""
    ours = {name: constant(shape, torch.float32, 0.0) for name, shape in shapes.items()}
    expected = {name: part.shape for name, part in family.export(ours, model).items()}
    wrong = [f"no {name} {list(shape)}" for name, shape in expected.items() if name not in stored]
    wrong += [f"{name} besides" for name in stored if name not in expected]
    wrong += [
        f"{name} {list(stored[name].shape)} (expected {list(shape)})"
        for name, shape in expected.items()
        if name in stored and stored[name].shape != shape
    ]
    if wrong:
        msg = (
            f"{folder} does not hold the {family.architecture} of its config.json: {_first(wrong)}.\n"
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


def _first(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
