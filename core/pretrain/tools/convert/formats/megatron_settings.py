"""Settings of a model, and orders of rows, that the arguments of Megatron-LM and its forks tell.

core_transformer_config_from_args and validate_args in megatron/training/arguments.py, TransformerConfig in
megatron/core/transformer/transformer_config.py; ParallelMLP in megatron/legacy/model/transformer.py for the activation:
--bias-gelu-fusion and --openai-gelu compute the tanh approximation; without both it is the exact gelu. The forks are
Megatron-DeepSpeed of Microsoft and of bigscience (megatron/arguments.py of both).

Rows of query_key_value on one rank by checkpoint version: 0: [q, k, v][head][channel]; 1.0: [head][channel][q, k, v];
2.0 and 3.0: ours (fix_query_key_value_ordering in megatron/training/checkpointing.py). Megatron-DeepSpeed of Microsoft
has the first order again since 4 December 2024, and still writes 3.0 (ParallelAttention.forward in
megatron/model/transformer.py at 676a482c, which also added the argument ds_sequence_parallel_fpdt).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import CheckpointError
from pretrain.recipe.sections.model import dense_and_frequency
from pretrain.tools.convert import rank_parts, weight_names
from pretrain.tools.convert.formats.megatron_rope import settings_of_rope
from pretrain.tools.convert.rank_parts import gate_last, is_gated, merged, not_ours
from pretrain.tools.convert.weight_names import bounded, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.lazy_tensor import LazyTensor

_RENAMED = {
    "norm_epsilon": "layernorm_epsilon",
    "layernorm_epsilon": "layernorm_epsilon",
    "rotary_base": "rotary_base",
    "rope_theta": "rotary_base",  # Megatron-DeepSpeed
    "rotary_percent": "rotary_percent",
    "num_key_value_heads": "num_query_groups",
    "use_rope_scaling": "use_rope_scaling",
    "qk_layernorm": "qk_layernorm",
    "rope_scaling_factor": "rope_scaling_factor",
    "make_vocab_size_divisible_by": "make_vocab_size_divisible_by",
}
OF_ROUTER = (
    *("moe_router_topk", "moe_router_score_function", "moe_router_pre_softmax", "moe_router_num_groups"),
    *("moe_router_group_topk", "moe_router_topk_scaling_factor", "moe_router_enable_expert_bias"),
)
_OF_GROUPS = ("moe_router_num_groups", "moe_router_group_topk")
_RATED = 2  # experts by which a group is rated
GROUPS = "moe_router_num_groups with a moe_router_topk that is not twice moe_router_group_topk"
_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_POSITIONS = dict.fromkeys(("learned_absolute", "absolute"), "learned_absolute") | dict.fromkeys(
    ("rope", "rotary", "yarn"), "rope"
)
# PositionEmbeddingType of bigscience's Megatron-DeepSpeed (megatron/enums.py), from 1
_ENUMERATION = ("rope", "learned_absolute", "alibi")
# name in the scheduler's state -> ours; the later ones are AnnealingLR's of Megatron-LM 2.x (learning_rates.py)
_SCHEDULE = {
    **{name: name for name in ("max_lr", "min_lr", "lr_warmup_steps", "lr_decay_steps", "lr_decay_style", "num_steps")},
    **{name: name for name in ("decoupled_lr", "decoupled_min_lr")},  # of this program alone
    **{name: name for name in ("start_wd", "end_wd", "wd_incr_style", "wd_incr_steps")},
    "warmup_steps": "lr_warmup_steps",
    "decay_steps": "lr_decay_steps",
    "decay_style": "lr_decay_style",
}
# epsilon of the embedding's norm whatever the others have (VocabParallelEmbedding in bigscience's mpu/layers.py)
_OF_EMBEDDING = 1e-5
VOCAB_SIZE = "pretrain_vocab_size"  # argument of this program alone: tokens of the vocabulary without padding


def settings_of(
    path: Path,
    args: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    orders_gate: bool = False,
    takes_experts: bool = False,
) -> dict[str, Any]:
    """Return the settings that arguments and whole shapes tell.

    With `orders_gate` the caller reorders a last gate; with `takes_experts` the arguments may be of megatron-core's
    experts, whose name num_experts Megatron-DeepSpeed has for DeepSpeed's.
    """
    known = {"num_experts"} if takes_experts and is_mixture(args) else set()
    refused = {name: allowed for name, allowed in ALLOWED.items() if name not in known}
    if wrong := [name for name, allowed in refused.items() if not _is_allowed(name, args.get(name), allowed)]:
        raise not_ours(path, ", ".join(f"{name} {bounded(args[name])}" for name in wrong))
    if _gate_is_last(args) and not orders_gate:
        raise not_ours(path, "glu_activation swiglu, whose gate is last")
    told = settings_of_shapes(shapes) | weight_names.settings_of_args(args)
    told |= {ours: plain(args[theirs]) for theirs, ours in _RENAMED.items() if args.get(theirs) is not None}
    norm = told["normalization"]
    told["normalization"] = _NORMS.get(norm.lower(), norm) if isinstance(norm, str) else norm
    told["activation"] = _activation(args)
    told["window_size"] = _window(path, args.get("window_size"))
    if told["embedding_layernorm"] and told.get("layernorm_epsilon", _OF_EMBEDDING) != _OF_EMBEDDING:
        epsilon = bounded(told["layernorm_epsilon"])
        raise not_ours(path, f"layernorm_epsilon {epsilon}, but {_OF_EMBEDDING} in the embedding's norm")
    told |= _experts(path, args) if takes_experts else {}
    positions = _positions(path, args, shapes)
    told |= settings_of_rope(path, args) if positions == "rope" else {}
    return told | ({} if positions is None else {"position_embedding_type": positions})


def groups_agree(model: ModelSection) -> bool:
    """Say whether megatron-core chooses the same groups of experts as ours.

    It rates a group by its best moe_router_topk // moe_router_group_topk experts (group_limited_topk in
    megatron/core/transformer/moe/moe_utils.py), ours by its best 2.
    """
    best = model.moe_router_group_topk
    return model.moe_router_num_groups is None or best is None or model.moe_router_topk // best == _RATED


def _experts(path: Path, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of experts among the arguments; {} for a model without them."""
    if not is_mixture(args):
        return {}
    balancing = args.get("moe_router_load_balancing_type")
    if balancing == "sinkhorn" or (isinstance(balancing, list) and "sinkhorn" in balancing):
        raise not_ours(path, "moe_router_load_balancing_type sinkhorn, by which other experts are chosen")
    names = ("num_experts", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", *OF_ROUTER)
    told = {name: plain(args[name]) for name in names if args.get(name) is not None}
    if told.get("moe_router_num_groups", 1) == 1:
        told = {name: value for name, value in told.items() if name not in _OF_GROUPS}
    frequency = args.get("moe_layer_freq")
    if not isinstance(frequency, list):
        return told | ({} if frequency is None else {"moe_layer_freq": plain(frequency)})
    found = dense_and_frequency([each == 1 for each in frequency]) if len(frequency) == args.get("num_layers") else None
    if found is None:
        raise not_ours(path, "experts in layers that first_k_dense_replace and moe_layer_freq do not describe")
    return told | dict(zip(("first_k_dense_replace", "moe_layer_freq"), found, strict=True))


def is_mixture(args: Mapping[str, Any]) -> bool:
    """Say whether arguments of Megatron-LM are of a model with experts."""
    experts = args.get("num_experts")
    return isinstance(experts, int) and experts > 1


def schedule_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a learning-rate schedule by megatron-core's names; none where it counts iterations, as before 2.1.

    Megatron-LM keeps the rates of embedding and output layer elsewhere: in their parameter group and the arguments.
    """
    saved = state.get("opt_param_scheduler") or state.get("lr_scheduler")
    if not isinstance(saved, dict) or "num_iters" in saved:
        return {}
    saved = _decoupled_rates(state, saved) | saved
    return {
        ours: saved[theirs]
        for theirs, ours in _SCHEDULE.items()
        if isinstance(saved.get(theirs), int | float | str) and not isinstance(saved[theirs], bool)
    }


def _decoupled_rates(state: Mapping[str, Any], schedule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rates of embedding and output layer; {} where they have those of the others.

    Their group has what the training used, but megatron-core 0.16 does not mark it; then the arguments tell.
    """
    for group in _parameter_groups(state.get("optimizer")):
        if group.get("is_decoupled_lr"):
            return {"decoupled_lr": group.get("max_lr"), "decoupled_min_lr": group.get("min_lr")}
    args = weight_names.args_of(state)
    if args.get("decoupled_lr") is None:
        return {}
    least = args.get("decoupled_min_lr")
    return {
        "decoupled_lr": args["decoupled_lr"],
        "decoupled_min_lr": schedule.get("min_lr") if least is None else least,
    }


def _parameter_groups(state: Any, depth: int = 8) -> Iterator[Mapping[str, Any]]:
    """Yield the parameter groups of an optimizer's state, at any depth: chained optimizers are nested."""
    if isinstance(state, dict) and depth:
        for key, value in state.items():
            if key == "param_groups" and isinstance(value, list):
                yield from (group for group in value if isinstance(group, dict))
            else:
                yield from _parameter_groups(value, depth - 1)
    elif isinstance(state, list) and depth:
        for value in state:
            yield from _parameter_groups(value, depth - 1)


def vocab_size_of(args: Mapping[str, Any], rows: int) -> int | None:
    """Return the tokens of the vocabulary without padding; None where the arguments do not tell."""
    # --vocab-size is not it: most tokenizers ignore it, and NullTokenizer has one more (build_tokenizer in
    # megatron/training/tokenizer/tokenizer.py).
    size = weight_names.whole_number(args, VOCAB_SIZE, 1)
    return size if size is not None and size <= rows else None


def _gate_is_last(args: Mapping[str, Any]) -> bool:
    """Say whether the rows of swiglu are [up; gate], as in bigscience's megatron/model/glu_activations.py."""
    return args.get("glu_activation") is not None


def _activation(args: Mapping[str, Any]) -> str:
    """Return the activation; ParallelMLP looks at bias_gelu_fusion before onnx_safe until it has swiglu, then after."""
    if args.get("swiglu") or _gate_is_last(args):
        return "swiglu"
    is_fused = args.get("bias_gelu_fusion", not args)  # v1.0 of Megatron-LM has arguments, and no fusion
    is_fused = is_fused and not (args.get("onnx_safe") and "swiglu" in args)
    is_of_engine = args.get("use_te_activation_func")  # Transformer Engine's GELU is the approximation
    return "gelu_tanh" if is_fused or args.get("openai_gelu") or is_of_engine else "gelu"


def _positions(path: Path, args: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    given = args.get("position_embedding_type")
    if numbers := getattr(given, "arguments", None):  # a record of an enumeration
        given = {str(number): name for number, name in enumerate(_ENUMERATION, 1)}.get(bounded(numbers[0]), numbers[0])
    if args.get("use_rotary_position_embeddings"):
        given = "rope"
    if given is None:
        if args.get("add_position_embedding") is False:
            raise not_ours(path, "no position embeddings (add_position_embedding False)")
        return "learned_absolute" if "embedding.position_embeddings.weight" in shapes else None
    if not isinstance(given, str) or given not in _POSITIONS:
        raise not_ours(path, f"position_embedding_type {bounded(given)}")
    return _POSITIONS[given]


def _window(path: Path, given: Any) -> int | None:
    """Return how many keys a token sees; theirs is how many before its own (-1: all), and how many after it."""
    match given:
        case None | [-1, 0]:
            return None
        case [int(before), 0] if before >= 0:
            return before + 1
        case [before, after]:
            raise not_ours(path, f"window_size {bounded(before)},{bounded(after)}")
        case _:
            raise not_ours(path, f"window_size {bounded(given)}")


# Argument -> its values, besides None, with which a model computes what ours does
ALLOWED: dict[str, tuple[Any, ...]] = dict.fromkeys(
    (
        *("apply_layernorm_1p", "apply_residual_connection_post_layernorm", "rotary_interleaved", "squared_relu"),
        *("quick_geglu", "multi_latent_attention", "qk_l2_norm", "window_attn_skip_freq", "no_rope_freq"),
        *("mtp_num_layers", "attention_output_gate", "is_hybrid_model", "use_mup", "softmax_scale"),
        *("heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"),
        *("activation_func_clamp_value", "glu_linear_offset", "experimental_attention_variant"),
        *("retro_add_retriever", "num_experts_switch", "moe_shared_expert_gate", "moe_latent_size"),
        *("moe_router_topk_limited_devices", "moe_router_force_load_balancing", "moe_apply_probs_on_input"),
    ),
    (False, 0, 0.0),
) | {
    "num_experts": (0, 1),
    "softmax_type": ("vanilla",),
    "glu_activation": ("swiglu",),  # bigscience's
}


def _is_allowed(name: str, value: Any, allowed: tuple[Any, ...]) -> bool:
    if name == "num_experts" and isinstance(value, list | tuple):  # microsoft's has a number for each group of layers
        return all(_is_allowed("", each, allowed) for each in value)
    return value is None or any(type(value) is type(each) and value == each for each in allowed)


_VERSIONS = (0.0, 1.0, 2.0, 3.0)
_FIRST_OF_OUR_ORDER = 2.0
_SINCE_PARTS_FIRST = "ds_sequence_parallel_fpdt"


def qkv_order(
    path: Path, version: object, args: Mapping[str, Any], model: ModelSection, ranks: int
) -> Callable[[LazyTensor], LazyTensor]:
    """Return the function that brings one rank's rows into our order."""
    if isinstance(version, bool) or not isinstance(version, int | float) or version not in _VERSIONS:
        known = ", ".join(map(str, _VERSIONS))
        msg = f"{path} has checkpoint_version {bounded(version)}, which is not supported (supported: {known})."
        raise CheckpointError(msg)
    is_parts_first = version == 0 or _SINCE_PARTS_FIRST in args
    if version >= _FIRST_OF_OUR_ORDER and not is_parts_first:
        return lambda part: part
    heads = model.num_attention_heads
    if model.num_query_groups != heads or heads % ranks:
        msg = f"{path} has query_key_value in an old order, which was never used with num_query_groups "
        msg += f"{model.num_query_groups}, num_attention_heads {heads} and {ranks} ranks.\n"
        msg += "Correct them with --set model.KEY=VALUE."
        raise CheckpointError(msg)
    function = rank_parts.from_parts_first if is_parts_first else rank_parts.from_channels_first
    return lambda part: function(part, heads // ranks)


def in_our_order(
    path: Path, state: Mapping[str, Any], model: ModelSection, parts: Mapping[str, Sequence[LazyTensor]]
) -> dict[str, LazyTensor]:
    """Return whole weights, with their rows in our order, of their parts on the tensor-parallel ranks."""
    args = weight_names.args_of(state)
    whole = {}
    for name, ranks in parts.items():
        ordered = ranks
        if ".linear_qkv." in name:
            order = qkv_order(path, state.get("checkpoint_version", 0), args, model, len(ranks))
            ordered = [order(part) for part in ranks]
        elif _gate_is_last(args) and is_gated(name, model):
            ordered = [gate_last(part) for part in ranks]
        whole[name] = merged(name, ordered, model)
    return whole


def settings_of_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the settings of the section `model` that whole shapes tell; rope, which has no weights, is not told."""
    settings = weight_names.model_of(shapes, weight_names.number_of_layers(shapes))
    qkv_has_bias = any(name.endswith(".linear_qkv.bias") for name in shapes)
    return settings | {
        "add_qkv_bias": qkv_has_bias and not settings.get("add_bias_linear", False),
        "normalization": "LayerNorm" if "decoder.final_layernorm.bias" in shapes else "RMSNorm",
        "embedding_layernorm": "embedding_layernorm.weight" in shapes,
        "qk_layernorm": any(name.endswith(".q_layernorm.weight") for name in shapes),
    }


def require_none(program: str, settings: Mapping[str, object], layout: Mapping[str, object]) -> None:
    """Require a program to lack none of the settings, by name whether they are needed; and no rest of a division."""
    if wrong := [name for name, has in settings.items() if has]:
        msg = f"{program} has no {', '.join(wrong)}: it cannot hold this model.\nChoose another format."
        raise CheckpointError(msg)
    if uneven := [name for name, rest in layout.items() if rest]:
        msg = f"{program} cannot divide {', '.join(uneven)} evenly.\nChoose a layout that divides them."
        raise CheckpointError(msg)


def rests_on_ranks(model: ModelSection, ranks: int) -> dict[str, int]:
    """Return for `require_none` the rests where tensor-parallel ranks divide a model."""
    names = ("num_attention_heads", "num_query_groups", "ffn_hidden_size")
    return {f"{name} {getattr(model, name)} on {ranks} ranks": getattr(model, name) % ranks for name in names}
