"""Read checkpoints of GPT-NeoX, and the layer files of Megatron-DeepSpeed's pipelines.

Biases of row-parallel layers: GPT-NeoX with gpt_j_residual adds each rank's before the one reduction of the layer, so
that the model's bias is their sum (ParallelTransformerLayer.forward in megatron/model/transformer.py since 29 September
2021, and tools/ckpts/merge20b.py). Without gpt_j_residual, as in Megatron-DeepSpeed, every rank adds the whole bias
after the reduction; GPT-NeoX's convert_neox_to_hf.py sums these too, which is right for one rank alone.
Other weights that every rank has whole are averaged where they differ, as both tools do.

GPT-NeoX's RMSNorm without rmsnorm_fusion was x / (sqrt(mean(x^2)) + eps) until 9 May 2025, and is
x / sqrt(mean(x^2) + eps) since (RMSNorm in megatron/model/norms.py before and after 4c9f1081); ours is the second.
Names in the MLP from before September 2024 mean the first. Files from between cannot be told from later ones.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError
from pretrain.tools.convert.formats.megatron_settings import (
    in_our_order,
    not_ours,
    schedule_of,
    settings_of,
    settings_of_shapes,
    whole_number,
)
from pretrain.tools.convert.formats.neox_config import config_settings, saved_config
from pretrain.tools.convert.formats.neox_layers import (
    OF_MEGATRON,
    STATES,
    iteration_of,
    layer_files,
    rotary_percent,
    rotary_size,
    state_of,
    stored_layers,
    transformer_layers,
)
from pretrain.tools.convert.formats.neox_names import ROW_BIASES, our_parts
from pretrain.tools.convert.lazy_tensor import summed
from pretrain.tools.convert.model_weights import ModelWeights, model_section, require_expected
from pretrain.tools.convert.qkv import from_ranks
from pretrain.tools.convert.rank_parts import gate_last, is_gated, merged
from pretrain.tools.convert.summary import CheckpointSummary, FileLayout, contents, dtype_names, extent
from pretrain.tools.convert.weight_names import (
    args_of,
    count,
    flat_weights,
    model_of,
    number_of_layers,
    require_sizes,
    settings_of_args,
    whole_shape,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.formats.neox_layers import Layers
    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.weight_names import Shapes


_SINCE_SEPTEMBER_2024 = "mlp.linear1.weight"
_NEGLIGIBLE = 1e-8
"""Epsilon of RMSNorm, GPT-NeoX's default, up to which both formulas give the same logits in fp32."""

_NOT_TOLD = ("activation", "parallel_residual")
"""Settings of GPT-NeoX that neither weights nor its short list of arguments tell."""


def describe(folder: Path) -> CheckpointSummary | None:
    """Describe the checkpoint in a folder, or return None if it is of another format.

    Raises:
        CheckpointError: a rank's file is missing, or one holds objects that could run code.
        DamageError: a file is cut off.
    """
    stored = layer_files(folder)
    if not stored:
        return None
    tensor = len(next(iter(stored.values())))
    layers = {number: state_of(files[0]) for number, files in stored.items()}
    weights = {
        f"{number}/{name}": weight for number, state in layers.items() for name, weight in flat_weights(state).items()
    }
    shapes: Shapes = {name: whole_shape(name, weight.shape, tensor) for name, weight in weights.items()}
    counted = {name: shape for name, shape in shapes.items() if not _is_copy(name, layers)}
    states = state_of(folder / STATES) if (folder / STATES).is_file() else {}
    args = args_of(states)
    transformer = transformer_layers(folder, layers)
    sizes = {"model_parallel_size": tensor, "tensor_model_parallel_size": tensor, "num_layers": len(transformer)}
    require_sizes(folder, args, sizes)
    files, size = extent(folder)
    is_neox = any(name.endswith("/final_linear.weight") for name in weights) or isinstance(states.get("args"), dict)
    return CheckpointSummary(
        path=folder,
        format="GPT-NeoX, one file a layer" if is_neox else "Megatron-DeepSpeed, one file a layer",
        version=None if states.get("ds_version") is None else f"DeepSpeed {states['ds_version']}",
        iteration=iteration_of(states, folder),
        model=_model(counted, layers, args, len(transformer)),
        parameters=count(counted, tensor),
        parts=FileLayout(tensor=tensor),
        dtypes=dtype_names(weight.dtype for weight in weights.values()),
        contents=contents(
            optimizer=any(folder.glob("*zero_pp_rank_*_optim_states.pt")) or states.get("optimizer") is not None,
            rng="torch_rng_state" in states,
            schedule=states.get("lr_scheduler") is not None,
        ),
        files=files,
        size=size,
    )


def read(folder: Path, given: Mapping[str, Any]) -> ModelWeights | None:
    """Return the weights of a checkpoint of GPT-NeoX or of a pipeline of Megatron-DeepSpeed, or None.

    Args:
        folder: of one checkpoint, `global_step1000/`.
        given: settings of the section `model` that the files do not tell; they win. GPT-NeoX tells activation and
            parallel_residual in its configs/*.yml alone.

    Raises:
        CheckpointError: ranks or layers are missing, parts do not belong together, or the model is not one of ours;
            or it has the first RMSNorm, and no other epsilon is given.
        DamageError: a file is damaged.
    """
    layers = stored_layers(folder)
    if layers is None:
        return None
    parts = our_parts(layers, is_untied=given.get("untie_embeddings_and_output_weights") is True)
    shapes = {name: whole_shape(name, each[0].shape, layers.tensor) for name, each in parts.items()}
    args = args_of(layers.states)
    sizes = {"model_parallel_size": layers.tensor, "tensor_model_parallel_size": layers.tensor}
    require_sizes(folder, args, sizes | {"num_layers": number_of_layers(shapes)})
    is_neox = not _is_of_megatron(layers)
    config = saved_config(folder) if is_neox else {}
    told = _neox_settings(layers, shapes, config, given) if is_neox else _megatron_settings(layers, shapes, given)
    model = model_section(folder, told, given)
    _require_possible(folder, model, shapes, layers.tensor, is_neox=is_neox)
    if is_neox and given.get("layernorm_epsilon") in (None, told.get("layernorm_epsilon")):  # recipes give all
        _require_our_norm(layers, model, config)
    if config.get("gpt_j_tied") and model.parallel_residual:  # a serial layer does not ask for gpt_j_tied
        parts |= {name: parts[_first_norm(name)] for name in parts if name != _first_norm(name)}
    samples = whole_number(layers.states, "global_samples")
    weights = ModelWeights(
        path=folder,
        format="GPT-NeoX, one file a layer" if is_neox else "Megatron-DeepSpeed, one file a layer",
        model=model,
        tensors=_neox_tensors(layers, parts, model) if is_neox else _megatron_tensors(layers, parts, model),
        iteration=iteration_of(layers.states, folder),
        consumed_samples=samples if is_neox else whole_number(args, "consumed_train_samples"),
        schedule={} if is_neox else schedule_of(layers.states),
    )
    return require_expected(weights)


def _is_of_megatron(layers: Layers) -> bool:
    names = (name for weights in layers.parts.values() for name in weights)
    return isinstance(layers.states.get("args"), argparse.Namespace) or any(
        name.startswith(OF_MEGATRON) for name in names
    )


def _neox_settings(
    layers: Layers, shapes: Shapes, config: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what weights, arguments and configuration tell.

    Raises:
        CheckpointError: there is no configuration, and what only it tells is not given.
    """
    told = settings_of_shapes(shapes)
    args = args_of(layers.states)
    told |= {name: args[name] for name in ("num_attention_heads", "max_position_embeddings") if name in args}
    missing = [name for name in _NOT_TOLD if name not in given]
    if config:
        told |= config_settings(layers.path, config)
    elif missing:
        msg = (
            f"{layers.path} has no configs/*.yml, which tells {' and '.join(missing)}.\n"
            "Copy it there, or give them: GPT-NeoX-20B has --set model.activation=gelu_tanh "
            "--set model.parallel_residual=true"
        )
        raise CheckpointError(msg)
    elif layers.rotary_size is not None:
        told["position_embedding_type"] = "rope"
    heads, hidden = {**told, **given}.get("num_attention_heads"), told.get("hidden_size")
    if layers.rotary_size is not None and type(heads) is int and type(hidden) is int and 0 < heads <= hidden:
        told["rotary_percent"] = rotary_percent(layers.rotary_size, hidden // heads, told.get("rotary_percent"))
    return told


def _megatron_settings(layers: Layers, shapes: Shapes, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what weights and arguments tell.

    Raises:
        CheckpointError: there are no arguments, and what only they tell is not given.
    """
    args = args_of(layers.states)
    if not args and "activation" not in given:
        msg = (
            f"{layers.path} has no mp_rank_00_model_states.pt with arguments, which tell the activation.\n"
            "Copy it there, or give it as --set model.activation=gelu_tanh."
        )
        raise CheckpointError(msg)
    return settings_of(layers.path, args, shapes, orders_gate=True)


def _require_possible(folder: Path, model: ModelSection, shapes: Shapes, ranks: int, *, is_neox: bool) -> None:
    """Refuse models that a program computes in another way than ours would."""
    wrong = None
    has_bias = any(name.endswith(ROW_BIASES[1]) for name in shapes)
    if any(name.endswith(ROW_BIASES[0]) for name in shapes) != has_bias:
        wrong = "biases in the attention or in the MLP alone (use_bias_in_attn_linear, use_bias_in_mlp)"
    elif is_neox and model.parallel_residual and not has_bias:
        wrong = "gpt_j_residual without use_bias_in_mlp, where GPT-NeoX leaves the attention's output out"
    elif model.num_query_groups % ranks or model.num_attention_heads % ranks:
        wrong = f"num_query_groups {model.num_query_groups} on {ranks} tensor-parallel ranks"
    if wrong:
        raise not_ours(folder, wrong)


def _require_our_norm(layers: Layers, model: ModelSection, config: Mapping[str, Any]) -> None:
    """Refuse an RMSNorm of the first formula whose epsilon matters."""
    is_first = model.normalization == "RMSNorm" and not config.get("rmsnorm_fusion") and not _is_late(layers)
    if is_first and model.layernorm_epsilon > _NEGLIGIBLE:
        msg = (
            f"{layers.path} has rms_norm_epsilon {model.layernorm_epsilon:g} added to the root of the mean square, as "
            "GPT-NeoX did until May 2025; ours is under the root.\n"
            f"Give another one: model.layernorm_epsilon={_NEGLIGIBLE:g} is next to none."
        )
        raise CheckpointError(msg)


def _is_late(layers: Layers) -> bool:
    return any(_SINCE_SEPTEMBER_2024 in weights for weights in layers.parts.values())


def _neox_tensors(layers: Layers, parts: Mapping[str, list[LazyTensor]], model: ModelSection) -> dict[str, LazyTensor]:
    is_late = _is_late(layers)

    def whole(name: str, each: list[LazyTensor]) -> LazyTensor:
        if ".linear_qkv." in name and model.num_query_groups != model.num_attention_heads:
            return from_ranks(each, model, is_sliced=not is_late)
        if model.parallel_residual and name.endswith(ROW_BIASES):
            return summed(each)
        if is_late and is_gated(name, model):  # a rank holds [its up rows; its gate rows]
            each = [gate_last(part) for part in each]
        return merged(name, each, model)

    return {name: whole(name, each) for name, each in parts.items()}


def _megatron_tensors(
    layers: Layers, parts: Mapping[str, list[LazyTensor]], model: ModelSection
) -> dict[str, LazyTensor]:
    states = {"checkpoint_version": 3.0} | layers.states  # pipelines came after 2.0
    return {
        name: merged(name, in_our_order(layers.path, states, model, name, each), model) for name, each in parts.items()
    }


def _first_norm(name: str) -> str:
    """Return the name of the norm that gpt_j_tied uses for both branches."""
    return name.replace(".pre_mlp_layernorm.", ".input_layernorm.")


def _is_copy(name: str, layers: dict[int, Any]) -> bool:
    """Say whether a weight is the embedding a second time, in the file of an output layer that is tied to it."""
    number, _, key = name.partition("/")
    return key.endswith("word_embeddings.weight") and int(number) != min(layers)


def _model(shapes: Shapes, layers: dict[int, Any], args: Mapping[str, Any], number: int) -> dict[str, Any]:
    settings = settings_of_args(args)
    model = model_of(shapes, number) | settings
    size = next((found for state in layers.values() if (found := rotary_size(state))), None)
    if size is not None:
        model["position_embedding_type"] = "rope"
    if size is not None and settings.get("num_attention_heads") and "hidden_size" in model:
        head = model["hidden_size"] // settings["num_attention_heads"]
        model["rotary_percent"] = rotary_percent(size, head)
    return model
