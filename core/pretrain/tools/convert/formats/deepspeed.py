"""Read DeepSpeed's own files: weights of each model-parallel rank and ZeRO's shards, or a universal checkpoint.

`mp_rank_XX_model_states.pt`, with ZeRO-3 `zero_pp_rank_D_mp_rank_XX_model_states.pt` (_get_ckpt_name in
deepspeed/runtime/engine.py); after ds_to_universal.py a folder `zero/` with one folder a weight. Pipelines with a file
for each layer, and GPT-NeoX, are other formats.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError
from pretrain.tools.convert import model_weights, weight_names
from pretrain.tools.convert.formats import deepspeed_weights
from pretrain.tools.convert.formats.megatron_settings import in_our_order, schedule_of, settings_of
from pretrain.tools.convert.lazy_tensor import part_of
from pretrain.tools.convert.model_weights import EMBEDDING, CheckpointSummary, FileLayout, ModelWeights
from pretrain.tools.convert.rank_parts import by_name, is_gated, lacking, not_ours, require_one_save, weights_in
from pretrain.tools.convert.stored import damaged, torch_file_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.formats.deepspeed_weights import UniversalWeight
    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.weight_names import Shapes

_MODEL = re.compile(r"(?:zero_pp_rank_(?P<data>\d+)_)?mp_rank_(?P<tensor>\d+)_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(?P<data>\d+)_mp_rank_(?P<tensor>\d+)_optim_states\.pt")
_MOST_RANKS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class _ShardFiles:
    # (model-parallel rank, data-parallel rank) -> file of the model; without ZeRO-3 the second is 0
    models: Mapping[tuple[int, int], Path]
    optimizers: Mapping[tuple[int, int], Path]  # the same of ZeRO's shards; empty without ZeRO
    tensor: int  # number of model-parallel ranks
    is_universal: bool  # whether each weight has a folder of its own (ds_to_universal.py)

    @property
    def format(self) -> str:
        return "DeepSpeed, universal" if self.is_universal else "DeepSpeed"

    @property
    def data(self) -> int:
        return max(data for _, data in self.optimizers or self.models) + 1


def _shard_files(folder: Path) -> _ShardFiles | None:
    matches = _matches(folder, _MODEL)
    if not matches:
        return None
    is_universal = (folder / deepspeed_weights.UNIVERSAL).is_dir()
    models = _by_rank(folder, [match for match in matches if match["data"]] or matches)
    optimizers = {} if is_universal else _by_rank(folder, _matches(folder, _OPTIMIZER))
    tensor = max(int(match["tensor"]) for match in matches) + 1
    for files in (models, optimizers):
        _require_all(folder, files, tensor)
    return _ShardFiles(models=models, optimizers=optimizers, tensor=tensor, is_universal=is_universal)


def describe(folder: Path) -> CheckpointSummary | None:
    """Describe the checkpoint in a folder, or return None if it is of another format."""
    found = _shard_files(folder)
    if found is None:
        return None
    state = _state(found.models[0, 0])
    shapes, dtypes = _weights(state, found.tensor)
    has_experts = any(folder.glob("layer_*_expert_*")) or any(folder.glob("expp_rank_*"))
    has_moments = found.is_universal and any(folder.glob(f"{deepspeed_weights.UNIVERSAL}/*/exp_avg.pt"))
    if not found.is_universal:
        _require_world(folder, state, found)
    told = weight_names.model_of(shapes, weight_names.number_of_layers(shapes))
    version, iteration = state.get("ds_version"), state.get("iteration", state.get("global_steps"))
    return CheckpointSummary(
        path=folder,
        format=found.format,
        version=None if version is None else f"DeepSpeed {weight_names.bounded(version)}",
        iteration=iteration if isinstance(iteration, int) else None,
        model=told | weight_names.settings_of_args(weight_names.args_of(state)),
        parameters=None if has_experts else weight_names.count(shapes, found.tensor),
        parts=FileLayout(tensor=found.tensor, data=found.data),
        dtypes=dtypes,
        contents=model_weights.contents(
            optimizer=bool(found.optimizers) or has_moments or state.get("optimizer") is not None,
            rng=any(key in state for key in ("rng_state", "random_rng_state", "torch_rng_state")),
            schedule=any(state.get(key) is not None for key in ("lr_scheduler", "opt_param_scheduler")),
        ),
    )


def _require_world(folder: Path, state: Mapping[str, Any], found: _ShardFiles) -> None:
    sizes = {"mp_world_size": found.tensor} | ({"dp_world_size": found.data} if found.optimizers else {})
    weight_names.require_sizes(folder, state, sizes)


def _matches(folder: Path, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    return [match for entry in sorted(folder.glob("*_states.pt")) if (match := pattern.fullmatch(entry.name))]


def _by_rank(folder: Path, matches: list[re.Match[str]]) -> dict[tuple[int, int], Path]:
    return {(int(match["tensor"]), int(match["data"] or 0)): folder / match[0] for match in matches}


def _require_all(folder: Path, files: Mapping[tuple[int, int], Path], tensor: int) -> None:
    """Require a file for each pair of model-parallel and data-parallel rank, or none at all."""
    last = max((data for _, data in files), default=-1)
    if tensor * (last + 1) > _MOST_RANKS:
        msg = f"{folder} has a file of rank {last}, but no training has so many.\nRemove it."
        raise CheckpointError(msg)
    wanted = {(rank, data) for rank in range(tensor) for data in range(last + 1)}
    if missing := sorted(wanted - files.keys()):
        shown = ", ".join(f"zero_pp_rank_{data}_mp_rank_{rank:02d}" for rank, data in missing[:3])
        raise lacking(folder, f"the files of {len(missing)} of {len(wanted)} ranks: {shown}")


def _weights(state: dict[str, Any], tensor: int) -> tuple[Shapes, tuple[str, ...]]:
    """Return the whole shapes and the dtypes; ZeRO-3 keeps shapes apart, since `module` has empty tensors there."""
    weights = weight_names.flat_weights(state["module"])
    divided = deepspeed_weights.listed(state.get("param_shapes"))
    divided |= deepspeed_weights.listed(state.get("frozen_param_shapes"))
    divided = divided or {name: weight.shape for name, weight in weights.items()}
    for name in (*(state.get("shared_params") or ()), *(state.get("buffer_names") or ())):
        divided.pop(name, None)
    shapes = {name: weight_names.whole_shape(name, shape, tensor) for name, shape in divided.items()}
    return shapes, model_weights.dtype_names(weight.dtype for weight in weights.values())


def read(folder: Path, given: Mapping[str, Any]) -> ModelWeights | None:
    """Return the weights of Megatron-DeepSpeed, those of ZeRO's optimizer where there are; None of another format."""
    found = _shard_files(folder)
    if found is None or (not found.is_universal and any(folder.glob("layer_*-model_*-model_states.pt"))):
        return None
    state = _state(found.models[0, 0])
    if isinstance(state.get("args"), dict):
        return None
    if any(folder.glob("layer_*_expert_*")) or any(folder.glob("expp_rank_*")):
        raise not_ours(folder, "a mixture of experts (num_experts)")
    args = weight_names.args_of(state)
    model, tensors = (_universal if found.is_universal else _divided)(folder, found, state, given)
    progress, samples = (args, "consumed_train_samples") if args else (state, "global_samples")
    weights = ModelWeights(
        path=folder,
        format=found.format,
        model=model,
        tensors=tensors,
        vocab_size=_vocab_size(state, tensors),
        iteration=weight_names.whole_number(state, "iteration" if "iteration" in state else "global_steps"),
        consumed_samples=weight_names.whole_number(progress, samples),
        schedule=schedule_of(state),
    )
    return model_weights.require_expected(weights)


def _state(file: Path) -> dict[str, Any]:
    state = torch_file_tensors(file)
    if not isinstance(state, dict) or "module" not in state:
        raise damaged(file, "has no key `module`")
    return state


def _universal(
    folder: Path, found: _ShardFiles, state: dict[str, Any], given: Mapping[str, Any]
) -> tuple[ModelSection, dict[str, LazyTensor]]:
    states = {file: state if rank == (0, 0) else _state(file) for rank, file in found.models.items()}
    require_one_save(list(states.items()))
    weights = deepspeed_weights.universal_weights(folder, list(states.values()))
    names = deepspeed_weights.our_names(weights, folder)
    args = weight_names.args_of(state)
    model = _model(folder, args, {names[name]: weight.tensor.shape for name, weight in weights.items()}, given)
    ranks = weight_names.whole_number(args, "tensor_model_parallel_size", 1) or found.tensor
    parts = {names[name]: _parts(folder, names[name], weight, ranks, model) for name, weight in weights.items()}
    return model, in_our_order(folder, state, model, parts)


def _parts(folder: Path, name: str, weight: UniversalWeight, ranks: int, model: ModelSection) -> list[LazyTensor]:
    """Split a weight into the ranks' parts if its rows are ordered rank by rank; else return it as one part."""
    tensor = weight.tensor
    if weight.in_order or not (is_gated(name, model) or ".linear_qkv." in name):
        return [tensor]
    if tensor.shape[0] % ranks:
        msg = f"{folder}: {name} {list(tensor.shape)} is not of {ranks} tensor-parallel ranks.\nCopy all files again."
        raise CheckpointError(msg)
    return [part_of(tensor, 0, rank, ranks) for rank in range(ranks)]


def _divided(
    folder: Path, found: _ShardFiles, state: dict[str, Any], given: Mapping[str, Any]
) -> tuple[ModelSection, dict[str, LazyTensor]]:
    _require_world(folder, state, found)
    files = [file for (_, data), file in sorted(found.models.items()) if data == 0]
    states = [(file, state if rank == 0 else _state(file)) for rank, file in enumerate(files)]
    require_one_save(states)
    theirs = by_name([(file, _of_rank(found, rank, each)) for rank, (file, each) in enumerate(states)])
    names = deepspeed_weights.our_names(theirs, folder)
    shapes = {names[name]: weight_names.whole_shape(name, each[0].shape, found.tensor) for name, each in theirs.items()}
    model = _model(folder, weight_names.args_of(state), shapes, given)
    return model, in_our_order(folder, state, model, {names[name]: each for name, each in theirs.items()})


def _of_rank(found: _ShardFiles, rank: int, state: dict[str, Any]) -> dict[str, LazyTensor]:
    """Return the weights of one tensor-parallel rank by their names; `state` is what its first file holds."""
    models = [file for (tensor, _), file in sorted(found.models.items()) if tensor == rank]
    optimizers = [file for (tensor, _), file in sorted(found.optimizers.items()) if tensor == rank]
    if not models[0].name.startswith("zero_pp_rank_"):
        copies = weights_in(models[0], state["module"])
        weights = dict(copies)
        for name, weight in (deepspeed_weights.fp32_weights(optimizers, state) if optimizers else {}).items():
            copy = copies.get(name)
            what = f"{name} of {models[0]}"
            weights[name] = weight if copy is None else deepspeed_weights.rounded_to(weight, copy, what)
    elif optimizers:
        weights = deepspeed_weights.fp32_weights(optimizers, state)
        if state.get("frozen_param_shapes"):
            states = [state, *map(_state, models[1:])]
            require_one_save(list(zip(models, states, strict=True)))
            weights |= deepspeed_weights.frozen_weights(models, states)
    else:
        what = "*zero_pp_rank_*_optim_states.pt, in which ZeRO-3 keeps the weights"
        msg = f"{models[0].parent} lacks {what}.\nCopy these files there."
        raise CheckpointError(msg)
    shared = state.get("shared_params") or ()
    return {name: weight for name, weight in weights.items() if name not in shared}


def _model(
    folder: Path, args: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]
) -> ModelSection:
    if not args and "activation" not in given:
        msg = f"{folder} has no arguments of Megatron-DeepSpeed: the activation is not known.\n"
        msg += "Pass --set model.activation=gelu_tanh, for instance, and model.num_attention_heads as well."
        raise CheckpointError(msg)
    return model_weights.model_section(folder, settings_of(folder, args, shapes, orders_gate=True), given)


def _vocab_size(state: Mapping[str, Any], weights: Mapping[str, LazyTensor]) -> int | None:
    """Return the size without padding, which Megatron-DeepSpeed notes for universal checkpoints."""
    info = state.get("universal_checkpoint_info")
    size = weight_names.whole_number(info, "original_vocab_size", 1) if isinstance(info, dict) else None
    return size if size and EMBEDDING in weights and size <= weights[EMBEDDING].shape[0] else None
