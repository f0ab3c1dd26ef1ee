"""DeepSpeed's files as weights of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.dialects.deepspeed.fp32_weights import fp32_weights, frozen_weights, rounded_to
from pretrain.tools.convert.dialects.deepspeed.names import our_names
from pretrain.tools.convert.dialects.deepspeed.universal import universal_weights
from pretrain.tools.convert.dialects.megatron.our_order import in_our_order
from pretrain.tools.convert.dialects.megatron.settings import schedule_of, settings_of, whole_number
from pretrain.tools.convert.dialects.rank_parts import by_name, require_one_save, weights_in
from pretrain.tools.convert.formats.megatron_weights import args_of, whole_shape
from pretrain.tools.convert.formats.zero_shards import format_name, require_world, shard_files
from pretrain.tools.convert.weights.lazy_tensor import part_of
from pretrain.tools.convert.weights.model_weights import EMBEDDING, ModelWeights, model_section, require_expected
from pretrain.tools.convert.weights.stored import torch_file_tensors
from pretrain.tools.convert.weights.tensor_parallel import is_gated, merged

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.dialects.deepspeed.universal import UniversalWeight
    from pretrain.tools.convert.formats.zero_shards import ShardFiles
    from pretrain.tools.convert.weights.lazy_tensor import LazyTensor


def read(folder: Path, given: Mapping[str, Any]) -> ModelWeights | None:
    """Return the weights of a checkpoint of Megatron-DeepSpeed; None if the folder has another format.

    fp32 weights of ZeRO's optimizer are preferred to the model's own, of fp16 or bf16. Pipelines with a file for each
    layer, and GPT-NeoX, are other formats.

    Args:
        folder: of one checkpoint.
        given: settings of the section `model` that the files do not tell; they win over the files.

    Raises:
        CheckpointError: ranks or weights are missing, or the model is none of ours.
        DamageError: a file is cut off, or does not hold what its format says.
    """
    found = shard_files(folder)
    if found is None or (not found.is_universal and any(folder.glob("layer_*-model_*-model_states.pt"))):
        return None
    state = _state(found.models[0, 0])
    if isinstance(state.get("args"), dict):
        return None
    if any(folder.glob("layer_*_expert_*")) or any(folder.glob("expp_rank_*")):
        msg = f"{folder} is of a mixture of experts (num_experts).\nRecipes have no such model: it cannot be converted."
        raise CheckpointError(msg)
    args = args_of(state)
    model, tensors = (
        _universal(folder, found, state, given) if found.is_universal else _divided(folder, found, state, given)
    )
    return require_expected(
        ModelWeights(
            path=folder,
            format=format_name(found),
            model=model,
            tensors=tensors,
            vocab_size=_vocab_size(state, tensors),
            iteration=whole_number(state, "iteration" if "iteration" in state else "global_steps"),
            consumed_samples=whole_number(args, "consumed_train_samples")
            if args
            else whole_number(state, "global_samples"),
            schedule=schedule_of(state),
        )
    )


def _state(file: Path) -> dict[str, Any]:
    state = torch_file_tensors(file)
    if not isinstance(state, dict) or "module" not in state:
        msg = f"{file} holds no model (a key `module`)."
        raise DamageError(msg)
    return state


def _universal(
    folder: Path, found: ShardFiles, state: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[ModelSection, dict[str, LazyTensor]]:
    """Return model and weights of a universal checkpoint."""
    states = {file: _state(file) for file in found.models.values()}
    require_one_save(list(states.items()))
    weights = universal_weights(folder, list(states.values()))
    names = our_names(weights, folder)
    args = args_of(state)
    model = _model(folder, args, {names[name]: weight.tensor.shape for name, weight in weights.items()}, given)
    ranks = whole_number(args, "tensor_model_parallel_size", 1) or found.tensor
    parts = {name: _parts(folder, names[name], weight, ranks, model) for name, weight in weights.items()}
    return model, _whole(folder, state, parts, names, model)


def _parts(folder: Path, name: str, weight: UniversalWeight, ranks: int, model: ModelSection) -> list[LazyTensor]:
    """Return the parts of the ranks of a weight whose order of rows ranks have for themselves."""
    tensor = weight.tensor
    if weight.in_order or not (is_gated(name, model) or ".linear_qkv." in name):
        return [tensor]
    if tensor.shape[0] % ranks:
        msg = f"{folder}: {name} {list(tensor.shape)} is not of {ranks} tensor-parallel ranks.\nCopy all files again."
        raise CheckpointError(msg)
    return [part_of(tensor, 0, rank, ranks) for rank in range(ranks)]


def _divided(
    folder: Path, found: ShardFiles, state: dict[str, Any], given: Mapping[str, Any]
) -> tuple[ModelSection, dict[str, LazyTensor]]:
    """Return model and weights of the files of ranks."""
    require_world(folder, state, found)
    files = [file for (_, data), file in sorted(found.models.items()) if data == 0]
    states = [(file, state if rank == 0 else _state(file)) for rank, file in enumerate(files)]
    require_one_save(states)
    parts = by_name([(file, _of_rank(found, rank, each)) for rank, (file, each) in enumerate(states)])
    names = our_names(parts, folder)
    shapes = {names[name]: whole_shape(name, each[0].shape, found.tensor) for name, each in parts.items()}
    model = _model(folder, args_of(state), shapes, given)
    return model, _whole(folder, state, parts, names, model)


def _of_rank(found: ShardFiles, rank: int, state: dict[str, Any]) -> dict[str, LazyTensor]:
    """Return the weights of one tensor-parallel rank by their names; `state` is what its first file holds."""
    models = [file for (tensor, _), file in sorted(found.models.items()) if tensor == rank]
    optimizers = [file for (tensor, _), file in sorted(found.optimizers.items()) if tensor == rank]
    if not models[0].name.startswith("zero_pp_rank_"):
        copies = weights_in(models[0], state["module"])
        weights = copies | {
            name: rounded_to(weight, copies[name], f"{name} of {models[0]}") if name in copies else weight
            for name, weight in (fp32_weights(optimizers, state) if optimizers else {}).items()
        }
    elif optimizers:
        weights = fp32_weights(optimizers, state)
        if state.get("frozen_param_shapes"):
            states = [state, *map(_state, models[1:])]
            require_one_save(list(zip(models, states, strict=True)))
            weights |= frozen_weights(models, states)
    else:
        msg = (
            f"{models[0].parent} lacks *zero_pp_rank_*_optim_states.pt, in which ZeRO-3 keeps the weights.\n"
            "Copy these files there."
        )
        raise CheckpointError(msg)
    shared = state.get("shared_params") or ()
    return {name: weight for name, weight in weights.items() if name not in shared}


def _model(
    folder: Path, args: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]
) -> ModelSection:
    if not args and "activation" not in given:
        msg = (
            f"{folder} has no arguments of Megatron-DeepSpeed, which tell the activation.\n"
            "Give it as --set model.activation=gelu_tanh; num_attention_heads is needed as well."
        )
        raise CheckpointError(msg)
    return model_section(folder, settings_of(folder, args, shapes, orders_gate=True), given)


def _whole(
    folder: Path,
    state: Mapping[str, Any],
    parts: Mapping[str, list[LazyTensor]],
    names: Mapping[str, str],
    model: ModelSection,
) -> dict[str, LazyTensor]:
    """Return whole weights in our order by our names."""
    return {
        ours: merged(ours, in_our_order(folder, state, model, ours, parts[name]), model) for name, ours in names.items()
    }


def _vocab_size(state: Mapping[str, Any], weights: Mapping[str, LazyTensor]) -> int | None:
    """Return the size without padding, which Megatron-DeepSpeed notes for universal checkpoints."""
    info = state.get("universal_checkpoint_info")
    size = whole_number(info, "original_vocab_size", 1) if isinstance(info, dict) else None
    return size if size and EMBEDDING in weights and size <= weights[EMBEDDING].shape[0] else None
