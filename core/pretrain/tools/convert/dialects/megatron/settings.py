"""Settings of a model among the arguments of Megatron-LM and its forks.

core_transformer_config_from_args and validate_args in megatron/training/arguments.py; ParallelMLP in
megatron/legacy/model/transformer.py for the activation: --bias-gelu-fusion and --openai-gelu compute the tanh
approximation; without both it is the exact gelu. The forks are Megatron-DeepSpeed of Microsoft and of bigscience
(megatron/arguments.py of both).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.tools.convert.dialects.megatron.refused_arguments import require_ours
from pretrain.tools.convert.dialects.refusal import not_ours
from pretrain.tools.convert.dialects.shape_settings import settings_of_shapes
from pretrain.tools.convert.formats.megatron_weights import bounded, plain, settings_of_args

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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

VOCAB_SIZE = "pretrain_vocab_size"
"""Argument that only checkpoints of this program have: tokens of the vocabulary without padding."""


def settings_of(
    path: Path, args: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], *, orders_gate: bool = False
) -> dict[str, Any]:
    """Return the settings of the section `model` that a checkpoint tells.

    Args:
        path: the checkpoint, for errors.
        args: arguments of the training; none in the releases of 2019, whose activation was OpenAI's gelu.
        shapes: whole shapes of the weights by our names.
        orders_gate: whether the caller brings rows of swiglu into our order where `gate_is_last`.

    Raises:
        CheckpointError: an argument is on that our model does not have.
    """
    require_ours(path, args)
    if gate_is_last(args) and not orders_gate:
        raise not_ours(path, "glu_activation swiglu, whose gate is last")
    told = settings_of_shapes(shapes) | settings_of_args(args)
    told |= {ours: plain(args[theirs]) for theirs, ours in _RENAMED.items() if args.get(theirs) is not None}
    norm = told["normalization"]
    told["normalization"] = _NORMS.get(norm.lower(), norm) if isinstance(norm, str) else norm
    told["activation"] = _activation(args)
    if told["embedding_layernorm"] and told.get("layernorm_epsilon", _OF_EMBEDDING) != _OF_EMBEDDING:
        epsilon = bounded(told["layernorm_epsilon"])
        raise not_ours(path, f"layernorm_epsilon {epsilon} in all norms but the embedding's, which has {_OF_EMBEDDING}")
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


def vocab_size_of(args: Mapping[str, Any], rows: int) -> int | None:
    """Return the tokens of the vocabulary without padding; None where the arguments do not tell.

    --vocab-size is not it: most tokenizers ignore it, and NullTokenizer has one more (build_tokenizer in
    megatron/training/tokenizer/tokenizer.py).

    Args:
        args: arguments of the training.
        rows: of the embedding, padding included.
    """
    size = whole_number(args, VOCAB_SIZE, 1)
    return size if size is not None and size <= rows else None


def gate_is_last(args: Mapping[str, Any]) -> bool:
    """Say whether the rows of swiglu are [up; gate], as in bigscience's megatron/model/glu_activations.py."""
    return args.get("glu_activation") is not None


def whole_number(args: Mapping[str, Any], name: str, least: int = 0) -> int | None:
    """Return an argument that counts something; None where it is absent or no such number."""
    value = args.get(name)
    return value if type(value) is int and value >= least else None


def _activation(args: Mapping[str, Any]) -> str:
    """Return the activation; ParallelMLP looks at bias_gelu_fusion before onnx_safe until it has swiglu, then after."""
    if args.get("swiglu") or gate_is_last(args):
        return "swiglu"
    is_fused = args.get("bias_gelu_fusion", not args)  # v1.0 of Megatron-LM has arguments, and no fusion
    is_fused = is_fused and not (args.get("onnx_safe") and "swiglu" in args)
    is_of_engine = args.get("use_te_activation_func")  # Transformer Engine's GELU is the approximation
    return "gelu_tanh" if is_fused or args.get("openai_gelu") or is_of_engine else "gelu"


def _positions(path: Path, args: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the kind of position embedding; None where nothing tells it.

    Raises:
        CheckpointError: ours has no such kind.
    """
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
