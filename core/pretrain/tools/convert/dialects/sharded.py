"""megatron-core's sharded format (torch_dist), as Megatron-LM writes it and as this program does."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch

from pretrain.atomic_files import replacing
from pretrain.checkpoint.folder import FORMAT, LATEST, folder_name, tracked
from pretrain.checkpoint.identity import structure
from pretrain.checkpoint.sharded_format import BACKEND, COMMON, sharded_name, weight_names
from pretrain.tools.convert.conversion.planned_files import Target
from pretrain.tools.convert.conversion.sharded_writer import Entry, ShardedFile, backend_json, write_index
from pretrain.tools.convert.dialects.megatron.settings import schedule_of, settings_of, vocab_size_of, whole_number
from pretrain.tools.convert.dialects.megatron.writing import args_for, place_of, require_possible
from pretrain.tools.convert.dialects.sharded_optimizer import optimizer_of
from pretrain.tools.convert.formats import sharded as format_
from pretrain.tools.convert.formats.dtypes import dtype_name
from pretrain.tools.convert.formats.megatron_weights import args_of
from pretrain.tools.convert.weights.model_weights import EMBEDDING, ModelWeights, model_section, require_expected
from pretrain.tools.convert.weights.sharded_tensors import sharded_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.tools.convert.conversion.planned_files import TargetLayout
    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor
    from pretrain.tools.convert.weights.sharded_tensors import ShardedTensor

_LINEAR = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


def read(folder: Path, given: Mapping[str, Any]) -> ModelWeights | None:
    """Return the weights of a sharded checkpoint; None if the folder has another format.

    Raises:
        CheckpointError: it is of an older kind (zarr), or not complete, or of a model that is not ours.
        DamageError: a file is cut off.
    """
    content = format_.content_of(folder)
    if content is None:
        return None
    common, is_ours = content.common, content.is_ours
    stored = sharded_tensors(folder, content.index)
    tensors = _weights(stored)
    args = args_of(common)
    progress = common["progress"] if is_ours else {"consumed_samples": whole_number(args, "consumed_train_samples")}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    rows = shapes.get(EMBEDDING, (0,))[0]
    told = content.settings if is_ours else settings_of(folder, args, shapes)
    return require_expected(
        ModelWeights(
            path=folder,
            format=content.format,
            model=model_section(folder, told, given),
            tensors=tensors,
            vocab_size=common["model"].get("vocab_size") if is_ours else vocab_size_of(args, rows),
            iteration=content.iteration,
            consumed_samples=progress["consumed_samples"],
            schedule=common.get("schedule", {}) if is_ours else schedule_of(common),
            optimizer=None if is_ours else optimizer_of(common, stored, tensors),
        )
    )


def write_pretrain(weights: ModelWeights, layout: TargetLayout) -> Target:  # noqa: ARG001  the format has no layout
    """Return the files of a folder of checkpoints of this program that has one, with weights alone."""
    weights = weights.padded_for(1, with_zeros=True)
    iteration = weights.iteration or 0
    name = folder_name(iteration)
    progress = {
        "iteration": iteration,
        "consumed_samples": weights.consumed_samples or 0,
        "skipped_iterations": 0,
        "blend": None,
        "order": None,
    }
    common = {
        "format": FORMAT,
        "progress": progress,
        "model": structure(weights.model) | {"vocab_size": weights.vocab_size, "vocabulary_rows": weights.rows},
        "dtype": dtype_name(weights.tensors[EMBEDDING].dtype),
        "settings": {},
        "samples": {},
    }
    if weights.schedule:
        common["schedule"] = dict(weights.schedule)
    files = _files(weights, name)
    small = {f"{name}/{COMMON}": _saved(common), f"{name}/{BACKEND}": backend_json()}

    def finish(folder: Path, written: Mapping[str, Any]) -> None:
        _write_index(folder / name, files, written)
        with replacing(folder / LATEST, error=None) as file:
            file.write(tracked(str(iteration)).encode())

    return Target(files=files, small=small, folder=name, finish=finish)


def write_torch_dist(weights: ModelWeights, layout: TargetLayout) -> Target:
    """Return the files of a folder of checkpoints of Megatron-LM that has one, with weights alone."""
    require_possible(weights.model, layout)
    weights = weights.padded_for(layout.tensor)
    name, latest = place_of(weights.iteration)
    common = {
        "args": args_for(weights, layout),
        "checkpoint_version": 3.0,
        "iteration": weights.iteration or 0,
        "content_metadata": {},
    }
    if weights.schedule:
        common["opt_param_scheduler"] = dict(weights.schedule)
    files = _files(weights, name)
    small = {
        f"{name}/{COMMON}": _saved(common),
        f"{name}/{BACKEND}": backend_json(),
        LATEST: latest,
    }
    return Target(
        files=files,
        small=small,
        folder=name,
        finish=lambda folder, written: _write_index(folder / name, files, written),
    )


def _weights(stored: Mapping[str, ShardedTensor]) -> dict[str, LazyTensor]:
    """Return the weights among the tensors of a checkpoint, under our names."""
    return {
        name: tensor.whole() if place is None else tensor.of_first(place)
        for key, tensor in stored.items()
        for name, place in weight_names(key, tensor.shape[0] if tensor.shape else 0)
    }


def _files(weights: ModelWeights, folder: str) -> list[ShardedFile]:
    """Return a file for each layer, and one for each of the other weights."""
    layers: dict[int | None, list[Entry]] = {}
    for name, tensor in weights.tensors.items():
        key, layer = sharded_name(name)
        layers.setdefault(layer, []).append(Entry(key, layer, weights.model.num_layers, tensor))
    files: list[ShardedFile] = []
    for layer, entries in layers.items():
        groups = [entries] if layer is not None else [[entry] for entry in entries]
        for group in groups:
            empty = () if layer is None else _empty_states(layer, weights.model.num_layers)
            files.append(ShardedFile(f"{folder}/__0_{len(files)}.distcp", tuple(group), empty))
    return files


def _empty_states(layer: int, layers: int) -> tuple[str, ...]:
    """Return the keys of a layer's extra states, in which Transformer Engine would keep scales of FP8."""
    parents = {name: "self_attention" if name in _LINEAR[:2] else "mlp" for name in _LINEAR}
    return tuple(
        f"decoder.layers.{parent}.{name}._extra_state/shard_{layer}_{layers}" for name, parent in parents.items()
    )


def _write_index(folder: Path, files: list[ShardedFile], written: Mapping[str, Any]) -> None:
    write_index(
        folder,
        [entry for file in files for entry in file.entries],
        {file.name.rpartition("/")[2]: written[file.name] for file in files},
    )


def _saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()
