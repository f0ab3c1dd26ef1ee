"""Settings of a model from the arguments of Megatron-DeepSpeed, microsoft's (deepspeedai) and bigscience's.

Sources: megatron/arguments.py (`_add_network_size_args`) of both; ParallelMLP in megatron/model/transformer.py for the
activation, which is looked up in the order openai_gelu, onnx_safe, swiglu, squared_relu; megatron/enums.py of
bigscience's for PositionEmbeddingType.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.checkpoint.formats.megatron_weights import settings_of_args
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_UNLIKE_OURS = (
    *("squared_relu", "apply_layernorm_1p", "apply_residual_connection_post_layernorm", "retro_add_retriever"),
    "num_experts_switch",
)
"""Switches under which a model computes something that ours does not."""

_RENAMED = {
    "layernorm_epsilon": "layernorm_epsilon",
    "rope_theta": "rotary_base",
    "num_key_value_heads": "num_query_groups",
    "make_vocab_size_divisible_by": "make_vocab_size_divisible_by",
}
"""Argument -> setting."""

_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_POSITIONS = {1: "rope", 2: "learned_absolute", 3: "alibi"}
"""Values of bigscience's PositionEmbeddingType; rope is its rotary."""

_EPSILON_OF_EMBEDDING = 1e-5
"""Of bigscience's norm of the embedding, whatever layernorm_epsilon is (VocabParallelEmbedding in mpu/layers.py)."""


def settings_told(args: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return settings of a recipe's section `model` that the arguments tell.

    Args:
        args: of the training, by their names; empty where the files have none.
        folder: the checkpoint, for errors.

    Raises:
        CheckpointError: the model is none of ours.
    """
    if not args:
        return {}
    _require_ours(args, folder)
    settings = settings_of_args(args)
    settings |= {ours: args[theirs] for theirs, ours in _RENAMED.items() if args.get(theirs) is not None}
    settings["position_embedding_type"] = _positions(args, folder)
    settings["activation"] = _activation(args, folder)
    if isinstance(norm := args.get("normalization"), str):
        settings["normalization"] = _NORMS.get(norm.lower(), norm)
    return settings


def gate_is_last(args: Mapping[str, Any]) -> bool:
    """Return whether the rows of swiglu are [up; gate], as in bigscience's megatron/model/glu_activations.py."""
    return args.get("glu_activation") is not None


def require_embedding_norm(args: Mapping[str, Any], folder: Path) -> None:
    """Require of a model with a norm of the embedding that it has the layers' epsilon, as ours.

    Raises:
        CheckpointError: it has another.
    """
    if args.get("layernorm_epsilon", _EPSILON_OF_EMBEDDING) != _EPSILON_OF_EMBEDDING:
        msg = (
            f"{folder}: the embedding's norm has epsilon {_EPSILON_OF_EMBEDDING}, the layers' "
            f"{args['layernorm_epsilon']!s:.60}.\nA model of this program has one layernorm_epsilon."
        )
        raise CheckpointError(msg)


def _require_ours(args: Mapping[str, Any], folder: Path) -> None:
    unlike = [name for name in _UNLIKE_OURS if args.get(name)]
    experts = args.get("num_experts")
    if any(number not in (None, 0, 1) for number in (experts if isinstance(experts, list | tuple) else [experts])):
        unlike.append("num_experts")
    if unlike:
        msg = f"{folder} is of a model with {', '.join(unlike)}.\nRecipes have no such model: it cannot be converted."
        raise CheckpointError(msg)


def _positions(args: Mapping[str, Any], folder: Path) -> str:
    kind = args.get("position_embedding_type")
    values = getattr(kind, "arguments", None)  # an enumeration, of which torch_file makes a record
    if isinstance(values, tuple):
        kind = next((name for value, name in _POSITIONS.items() if values == (value,)), "unknown")
    elif kind is None:
        rotary, learned = args.get("use_rotary_position_embeddings"), args.get("add_position_embedding", True)
        kind = "rope" if rotary else "learned_absolute" if learned else "none"
    if kind not in ("rope", "learned_absolute"):
        msg = f"{folder} is of a model with position embeddings {kind!s:.60}.\nrope and learned_absolute are read."
        raise CheckpointError(msg)
    return str(kind)


def _activation(args: Mapping[str, Any], folder: Path) -> str:
    gated = args.get("glu_activation")
    if gated not in (None, "swiglu"):
        msg = f"{folder} is of a model with glu_activation {gated!s:.60}.\nswiglu is read, and gelu without a gate."
        raise CheckpointError(msg)
    if gated:
        return "swiglu"
    if args.get("openai_gelu"):
        return "gelu_tanh"
    if args.get("onnx_safe") and not ("glu_activation" in args and args.get("bias_gelu_fusion")):
        return "gelu"  # bigscience's looks at bias_gelu_fusion first
    if args.get("swiglu"):
        return "swiglu"
    return "gelu_tanh" if args.get("bias_gelu_fusion", True) else "gelu"
