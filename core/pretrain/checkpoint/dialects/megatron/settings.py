"""Settings of a model among the arguments of Megatron-LM and its forks.

core_transformer_config_from_args and validate_args in megatron/training/arguments.py; ParallelMLP in
megatron/legacy/model/transformer.py for the activation: --bias-gelu-fusion and --openai-gelu compute the tanh
approximation; without both it is the exact gelu. The forks are Megatron-DeepSpeed of Microsoft and of bigscience.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.checkpoint.dialects.shape_settings import settings_of_shapes
from pretrain.checkpoint.formats.megatron_weights import settings_of_args
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_OFF: dict[str, tuple[Any, ...]] = dict.fromkeys(
    (
        *("apply_layernorm_1p", "apply_residual_connection_post_layernorm", "rotary_interleaved", "squared_relu"),
        *("quick_geglu", "multi_latent_attention", "qk_layernorm", "window_size", "no_rope_freq", "mtp_num_layers"),
        *("glu_activation", "attention_output_gate", "is_hybrid_model", "heterogeneous_layers_config_path", "use_mup"),
        *(
            "retro_add_retriever",
            "softmax_scale",
            "activation_func_clamp_value",
            "glu_linear_offset",
            "experimental_attention_variant",
        ),
    ),
    (None, False, 0),
) | {
    "num_experts": (None, 0, 1, [1]),
    "rotary_seq_len_interpolation_factor": (None, 1),
    "softmax_type": (None, "vanilla"),
}
"""Argument that changes what a model computes in a way that ours cannot -> its values that do not."""

_RENAMED = {
    "norm_epsilon": "layernorm_epsilon",
    "layernorm_epsilon": "layernorm_epsilon",
    "rotary_base": "rotary_base",
    "rope_theta": "rotary_base",  # Megatron-DeepSpeed
    "rotary_percent": "rotary_percent",
    "num_key_value_heads": "num_query_groups",
    "use_rope_scaling": "use_rope_scaling",
    "rope_scaling_factor": "rope_scaling_factor",
    "make_vocab_size_divisible_by": "make_vocab_size_divisible_by",
}
_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_POSITIONS = {"learned_absolute": "learned_absolute", "absolute": "learned_absolute", "rope": "rope", "rotary": "rope"}
_ENUMERATION = ("rope", "learned_absolute", "alibi")
"""PositionEmbeddingType of bigscience's Megatron-DeepSpeed (megatron/enums.py), from 1."""

_SCHEDULE = {
    **{name: name for name in ("max_lr", "min_lr", "lr_warmup_steps", "lr_decay_steps", "lr_decay_style", "num_steps")},
    **{name: name for name in ("start_wd", "end_wd", "wd_incr_style", "wd_incr_steps")},
    "warmup_steps": "lr_warmup_steps",
    "decay_steps": "lr_decay_steps",
    "decay_style": "lr_decay_style",
}
"""Name in the scheduler's state -> ours; the later ones are AnnealingLR's of Megatron-LM 2.x (learning_rates.py)."""


_OF_EMBEDDING = 1e-5
"""Epsilon of the embedding's norm whatever the others have (VocabParallelEmbedding in bigscience's mpu/layers.py)."""


def settings_of(path: Path, args: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the settings of the section `model` that a checkpoint tells.

    Args:
        path: the checkpoint, for errors.
        args: arguments of the training; none in the releases of 2019, whose activation was OpenAI's gelu.
        shapes: whole shapes of the weights by our names.

    Raises:
        CheckpointError: an argument is on that our model does not have.
    """
    if wrong := [f"{name} {str(args[name])[:60]}" for name, off in _OFF.items() if not _is_one_of(args.get(name), off)]:
        raise _not_ours(path, ", ".join(wrong))
    told = settings_of_shapes(shapes) | settings_of_args(args)
    told |= {ours: args[theirs] for theirs, ours in _RENAMED.items() if args.get(theirs) is not None}
    norm = told["normalization"]
    told["normalization"] = _NORMS.get(norm.lower(), norm) if isinstance(norm, str) else norm
    told["activation"] = _activation(args)
    if told["embedding_layernorm"] and told.get("layernorm_epsilon", _OF_EMBEDDING) != _OF_EMBEDDING:
        raise _not_ours(
            path, f"layernorm_epsilon {str(told['layernorm_epsilon'])[:60]} in all norms but the embedding's"
        )
    positions = _positions(path, args, shapes)
    return told | ({} if positions is None else {"position_embedding_type": positions})


def schedule_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a learning-rate schedule by megatron-core's names; none where it counts iterations, as before 2.1."""
    saved = state.get("opt_param_scheduler") or state.get("lr_scheduler")
    if not isinstance(saved, dict) or "num_iters" in saved:
        return {}
    return {
        ours: saved[theirs]
        for theirs, ours in _SCHEDULE.items()
        if isinstance(saved.get(theirs), int | float | str) and not isinstance(saved[theirs], bool)
    }


def whole_number(args: Mapping[str, Any], name: str, least: int = 0) -> int | None:
    """Return an argument that counts something; None where it is absent or no such number."""
    value = args.get(name)
    return value if type(value) is int and value >= least else None


def _is_one_of(value: Any, off: tuple[Any, ...]) -> bool:
    return value is None or any(type(value) is type(each) and value == each for each in off)


def _activation(args: Mapping[str, Any]) -> str:
    if args.get("swiglu"):
        return "swiglu"
    return "gelu_tanh" if args.get("bias_gelu_fusion", True) or args.get("openai_gelu") else "gelu"


def _positions(path: Path, args: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the kind of position embedding; None where nothing tells it.

    Raises:
        CheckpointError: ours has no such kind.
    """
    given = args.get("position_embedding_type")
    if numbers := getattr(given, "arguments", None):  # a record of an enumeration
        given = _ENUMERATION[numbers[0] - 1] if numbers[0] in range(1, len(_ENUMERATION) + 1) else numbers[0]
    if args.get("use_rotary_position_embeddings"):
        given = "rope"
    if given is None:
        return "learned_absolute" if "embedding.position_embeddings.weight" in shapes else None
    if not isinstance(given, str) or given not in _POSITIONS:
        raise _not_ours(path, f"position_embedding_type {str(given)[:60]}")
    return _POSITIONS[given]


def _not_ours(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is of a model with {what}.\nRecipes have no such setting: it cannot be converted.")
