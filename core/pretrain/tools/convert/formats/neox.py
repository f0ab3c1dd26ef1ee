"""Read checkpoints of GPT-NeoX, and the layer files of Megatron-DeepSpeed's pipelines.

GPT-NeoX saves its configuration as configs/*.yml with every checkpoint; names and defaults are those of NeoXArgsModel
in megatron/neox_arguments/neox_args.py.

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

import yaml

from pretrain.errors import CheckpointError
from pretrain.recipe.section import shown
from pretrain.tools.convert import model_weights, weight_names
from pretrain.tools.convert.formats import neox_layers
from pretrain.tools.convert.formats.megatron_settings import in_our_order, schedule_of, settings_of, settings_of_shapes
from pretrain.tools.convert.lazy_tensor import summed
from pretrain.tools.convert.model_weights import CheckpointSummary, FileLayout, ModelWeights
from pretrain.tools.convert.rank_parts import from_ranks, gate_last, is_gated, merged, not_ours
from pretrain.tools.convert.stored import damaged

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.formats.neox_layers import Layers
    from pretrain.tools.convert.lazy_tensor import LazyTensor
    from pretrain.tools.convert.weight_names import Shapes

_SINCE_SEPTEMBER_2024 = "mlp.linear1.weight"
_NEGLIGIBLE = 1e-8  # epsilon of RMSNorm, GPT-NeoX's default, up to which both formulas give the same logits in fp32
_NOT_TOLD = ("activation", "parallel_residual")  # by neither weights nor GPT-NeoX's short list of arguments
_NEOX, _MEGATRON = "GPT-NeoX, one file a layer", "Megatron-DeepSpeed, one file a layer"
_RENAMED = {
    **{name: name for name in ("num_layers", "hidden_size", "num_attention_heads", "seq_length")},
    **{name: name for name in ("max_position_embeddings", "make_vocab_size_divisible_by")},
    "num_kv_heads": "num_query_groups",
    "rotary_emb_base": "rotary_base",
    "gpt_j_residual": "parallel_residual",
}
# setting that changes what a model computes in a way that ours cannot -> its values that do not
_OFF: dict[str, tuple[Any, ...]] = {
    "moe_num_experts": (0, 1),
    **dict.fromkeys(("use_qk_layernorm", "sliding_window_width", "num_unique_layers", "use_mup"), (False, 0)),
    "opt_pos_emb_offset": (0,),
    "soft_prompt_tuning": ({}, {"enabled": False}),
}
_NORMS = {"layernorm": ("LayerNorm", "layernorm_epsilon", 1e-5), "rmsnorm": ("RMSNorm", "rms_norm_epsilon", 1e-8)}
_POSITIONS = {"learned": "learned_absolute", "rotary": "rope"}
_GATED = ("swiglu", "silu", "swish")  # the last two in the Llama MLP of 2023, whose gate is a weight of its own
_ATTENTION = {"global", "flash"}
_LARGEST = 1_000_000  # bytes of a file of settings


def describe(folder: Path) -> CheckpointSummary | None:
    """Describe the checkpoint in a folder, or return None if it is of another format."""
    stored = neox_layers.layer_files(folder)
    if not stored:
        return None
    tensor = len(next(iter(stored.values())))
    layers = {number: neox_layers.state_of(files[0]) for number, files in stored.items()}
    found = {number: weight_names.flat_weights(state) for number, state in layers.items()}
    weights = {f"{number}/{name}": weight for number, named in found.items() for name, weight in named.items()}
    shapes: Shapes = {name: weight_names.whole_shape(name, weight.shape, tensor) for name, weight in weights.items()}
    # not the embedding a second time, in the file of an output layer that is tied to it
    first = f"{min(layers)}/"
    counted = {
        name: shape
        for name, shape in shapes.items()
        if name.startswith(first) or not name.endswith("word_embeddings.weight")
    }
    states = neox_layers.state_of(folder / neox_layers.STATES) if (folder / neox_layers.STATES).is_file() else {}
    args = weight_names.args_of(states)
    transformer = neox_layers.transformer_layers(folder, layers)
    sizes = {"model_parallel_size": tensor, "tensor_model_parallel_size": tensor, "num_layers": len(transformer)}
    weight_names.require_sizes(folder, args, sizes)
    is_neox = any(name.endswith("/final_linear.weight") for name in weights) or isinstance(states.get("args"), dict)
    return CheckpointSummary(
        path=folder,
        format=_NEOX if is_neox else _MEGATRON,
        version=None if states.get("ds_version") is None else f"DeepSpeed {states['ds_version']}",
        iteration=neox_layers.iteration_of(states, folder),
        model=_model(counted, layers, args, len(transformer)),
        parameters=weight_names.count(counted, tensor),
        parts=FileLayout(tensor=tensor),
        dtypes=model_weights.dtype_names(weight.dtype for weight in weights.values()),
        contents=model_weights.contents(
            optimizer=any(folder.glob("*zero_pp_rank_*_optim_states.pt")) or states.get("optimizer") is not None,
            rng="torch_rng_state" in states,
            schedule=states.get("lr_scheduler") is not None,
        ),
    )


def read(folder: Path, given: Mapping[str, Any]) -> ModelWeights | None:
    """Return the weights of a checkpoint of GPT-NeoX or of a pipeline of Megatron-DeepSpeed, or None."""
    layers = neox_layers.stored_layers(folder)
    if layers is None:
        return None
    parts = neox_layers.our_parts(layers, is_untied=given.get("untie_embeddings_and_output_weights") is True)
    shapes = {name: weight_names.whole_shape(name, each[0].shape, layers.tensor) for name, each in parts.items()}
    args = weight_names.args_of(layers.states)
    sizes = {"model_parallel_size": layers.tensor, "tensor_model_parallel_size": layers.tensor}
    weight_names.require_sizes(folder, args, sizes | {"num_layers": weight_names.number_of_layers(shapes)})
    has_their_names = any(
        name.startswith(neox_layers.OF_MEGATRON) for weights in layers.parts.values() for name in weights
    )
    is_neox = not (has_their_names or isinstance(layers.states.get("args"), argparse.Namespace))
    config = _saved_config(folder) if is_neox else {}
    told = _neox_settings(layers, shapes, config, given) if is_neox else _megatron_settings(layers, shapes, given)
    model = model_weights.model_section(folder, told, given)
    _require_possible(folder, model, shapes, layers.tensor, is_neox=is_neox)
    if is_neox and given.get("layernorm_epsilon") in (None, told.get("layernorm_epsilon")):  # recipes give all
        _require_our_norm(layers, model, config)
    if config.get("gpt_j_tied") and model.parallel_residual:  # both branches use one norm; a serial layer does not ask
        norms = {name: name.replace(".pre_mlp_layernorm.", ".input_layernorm.") for name in parts}
        parts |= {name: parts[first] for name, first in norms.items() if name != first}
    samples = weight_names.whole_number(layers.states, "global_samples")
    states = {"checkpoint_version": 3.0} | layers.states  # pipelines came after 2.0
    weights = ModelWeights(
        path=folder,
        format=_NEOX if is_neox else _MEGATRON,
        model=model,
        tensors=_neox_tensors(layers, parts, model) if is_neox else in_our_order(folder, states, model, parts),
        iteration=neox_layers.iteration_of(layers.states, folder),
        consumed_samples=samples if is_neox else weight_names.whole_number(args, "consumed_train_samples"),
        schedule={} if is_neox else schedule_of(layers.states),
    )
    return model_weights.require_expected(weights)


def _neox_settings(
    layers: Layers, shapes: Shapes, config: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    told = settings_of_shapes(shapes)
    args = weight_names.args_of(layers.states)
    told |= {name: args[name] for name in ("num_attention_heads", "max_position_embeddings") if name in args}
    missing = [name for name in _NOT_TOLD if name not in given]
    if config:
        told |= _config_settings(layers.path, config)
    elif missing:
        msg = (
            f"{layers.path} has no configs/*.yml, the only file with {' and '.join(missing)}.\n"
            "Copy it there, or give them; for GPT-NeoX-20B: --set model.activation=gelu_tanh "
            "--set model.parallel_residual=true"
        )
        raise CheckpointError(msg)
    elif layers.rotary_size is not None:
        told["position_embedding_type"] = "rope"
    heads, hidden = {**told, **given}.get("num_attention_heads"), told.get("hidden_size")
    if layers.rotary_size is not None and type(heads) is int and type(hidden) is int and 0 < heads <= hidden:
        told["rotary_percent"] = neox_layers.rotary_percent(
            layers.rotary_size, hidden // heads, told.get("rotary_percent")
        )
    return told


def _megatron_settings(layers: Layers, shapes: Shapes, given: Mapping[str, Any]) -> dict[str, Any]:
    args = weight_names.args_of(layers.states)
    if not args and "activation" not in given:
        msg = f"{layers.path} has no mp_rank_00_model_states.pt with arguments: the activation is not known.\n"
        msg += "Copy the file there, or pass --set model.activation=gelu_tanh, for instance."
        raise CheckpointError(msg)
    return settings_of(layers.path, args, shapes, orders_gate=True)


def _require_possible(folder: Path, model: ModelSection, shapes: Shapes, ranks: int, *, is_neox: bool) -> None:
    wrong = None
    has_bias = any(name.endswith(neox_layers.ROW_BIASES[1]) for name in shapes)
    if any(name.endswith(neox_layers.ROW_BIASES[0]) for name in shapes) != has_bias:
        wrong = "biases in the attention or in the MLP alone (use_bias_in_attn_linear, use_bias_in_mlp)"
    elif is_neox and model.parallel_residual and not has_bias:
        wrong = "gpt_j_residual without use_bias_in_mlp, where GPT-NeoX leaves the attention's output out"
    elif model.num_query_groups % ranks or model.num_attention_heads % ranks:
        wrong = f"num_query_groups {model.num_query_groups} on {ranks} tensor-parallel ranks"
    if wrong:
        raise not_ours(folder, wrong)


def _require_our_norm(layers: Layers, model: ModelSection, config: Mapping[str, Any]) -> None:
    is_first = model.normalization == "RMSNorm" and not config.get("rmsnorm_fusion") and not _is_late(layers)
    if is_first and model.layernorm_epsilon > _NEGLIGIBLE:
        msg = (
            f"{layers.path} adds rms_norm_epsilon {model.layernorm_epsilon:g} to the root of the mean square, as "
            "GPT-NeoX did until May 2025; here it is added under the root.\n"
            f"Pass --set model.layernorm_epsilon={_NEGLIGIBLE:g}, with which both are equal."
        )
        raise CheckpointError(msg)


def _is_late(layers: Layers) -> bool:
    return any(_SINCE_SEPTEMBER_2024 in weights for weights in layers.parts.values())


def _neox_tensors(layers: Layers, parts: Mapping[str, list[LazyTensor]], model: ModelSection) -> dict[str, LazyTensor]:
    is_late = _is_late(layers)

    def whole(name: str, each: list[LazyTensor]) -> LazyTensor:
        if ".linear_qkv." in name and model.num_query_groups != model.num_attention_heads:
            return from_ranks(each, model, is_sliced=not is_late)
        if model.parallel_residual and name.endswith(neox_layers.ROW_BIASES):
            return summed(each)
        if is_late and is_gated(name, model):  # a rank holds [its up rows; its gate rows]
            each = [gate_last(part) for part in each]
        return merged(name, each, model)

    return {name: whole(name, each) for name, each in parts.items()}


def _model(shapes: Shapes, layers: dict[int, Any], args: Mapping[str, Any], number: int) -> dict[str, Any]:
    settings = weight_names.settings_of_args(args)
    model = weight_names.model_of(shapes, number) | settings
    size = next((found for state in layers.values() if (found := neox_layers.rotary_size(state))), None)
    if size is not None:
        model["position_embedding_type"] = "rope"
    if size is not None and settings.get("num_attention_heads") and "hidden_size" in model:
        head = model["hidden_size"] // settings["num_attention_heads"]
        model["rotary_percent"] = neox_layers.rotary_percent(size, head)
    return model


class _ConfigLoader(yaml.SafeLoader):
    """Loader of values without aliases (*name), by which a small file can be a huge value."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            msg = "aliases (*name) are not read"
            raise yaml.YAMLError(msg)
        return super().compose_node(parent, index)


def _saved_config(folder: Path) -> dict[str, Any]:
    """Return the configuration saved in a checkpoint or beside it; {} if there is none."""
    config: dict[str, Any] = {}
    place = next((each for each in (folder / "configs", folder.parent / "configs") if each.is_dir()), None)
    for path in sorted(place.glob("*.yml")) if place is not None else ():
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST + 1)
            if len(content) > _LARGEST:
                msg = f"it is larger than {_LARGEST:,} bytes"
                raise ValueError(msg)
            found = yaml.load(content.decode(), _ConfigLoader)  # noqa: S506  a SafeLoader
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise damaged(path, f"is not valid YAML: {str(error).splitlines()[0][:200]}") from error
        if not isinstance(found, dict):
            raise damaged(path, "does not map names to settings")
        config |= {str(name).replace("-", "_"): value for name, value in found.items()}
    return config


def _config_settings(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the section `model` that a whole configuration tells, with GPT-NeoX's defaults."""
    told = {ours: config[theirs] for theirs, ours in _RENAMED.items() if config.get(theirs) is not None}
    norm = _one_of(path, config, "norm", "layernorm", _NORMS)
    told["normalization"], epsilon, default = _NORMS[norm]
    told["layernorm_epsilon"] = config.get(epsilon, default)
    told["position_embedding_type"] = _POSITIONS[_one_of(path, config, "pos_emb", "learned", _POSITIONS)]
    told["rotary_percent"] = config.get("rotary_pct", 1.0)
    told["activation"] = "gelu_tanh" if config.get("bias_gelu_fusion") else "gelu"
    if _one_of(path, config, "activation", "gelu", ("gelu", *_GATED)) in _GATED:
        told["activation"] = "swiglu"
    for name, off in _OFF.items():
        if config.get(name) is not None and config[name] not in off:
            raise not_ours(path, f"{name} {shown(config[name])}")
    if kinds := set(_words(config.get("attention_config"), 4)) - _ATTENTION:
        raise not_ours(path, f"attention_config {', '.join(sorted(kinds))[:60]}")
    return told


def config_of(model: ModelSection) -> dict[str, Any]:
    """Return GPT-NeoX's configuration of a model."""
    is_gated = model.activation == "swiglu"
    norm, (_, epsilon, _) = next(each for each in _NORMS.items() if each[1][0] == model.normalization)
    has_groups = model.num_query_groups != model.num_attention_heads
    return {
        **{theirs: getattr(model, ours) for theirs, ours in _RENAMED.items() if ours != "num_query_groups"},
        **({"num_kv_heads": model.num_query_groups} if has_groups else {}),
        "intermediate_size": model.ffn_hidden_size * (3 if is_gated else 1),  # ParallelMLP takes a third for a gate
        "mlp_multiple_of": 1,
        "norm": norm,
        epsilon: model.layernorm_epsilon,
        "pos_emb": next(name for name, ours in _POSITIONS.items() if ours == model.position_embedding_type),
        "rotary_pct": model.rotary_percent,
        "activation": "swiglu" if is_gated else "gelu",
        "bias_gelu_fusion": model.activation == "gelu_tanh",
        "use_bias_in_attn_linear": model.add_bias_linear,
        "use_bias_in_mlp": model.add_bias_linear,
        "no_weight_tying": model.untie_embeddings_and_output_weights,
    }


def _one_of(path: Path, config: Mapping[str, Any], name: str, default: str, known: Any) -> str:
    value = config.get(name, default)
    if not isinstance(value, str) or value not in known:
        raise not_ours(path, f"{name} {shown(value)}")
    return value


def _words(value: Any, depth: int) -> list[str]:
    """Return the words in nested lists, such as [[["global", "local"], 6]]."""
    if isinstance(value, str):
        return [value]
    return [word for each in value for word in _words(each, depth - 1)] if isinstance(value, list) and depth else []
