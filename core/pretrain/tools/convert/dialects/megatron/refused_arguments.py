"""Arguments of Megatron-LM and its forks under which a model computes something that ours does not.

core_transformer_config_from_args in megatron/training/arguments.py, TransformerConfig in
megatron/core/transformer/transformer_config.py; megatron/arguments.py of microsoft's and bigscience's
Megatron-DeepSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.tools.convert.dialects.refusal import not_ours
from pretrain.tools.convert.formats.megatron_weights import bounded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ALLOWED: dict[str, tuple[Any, ...]] = dict.fromkeys(
    (
        *("apply_layernorm_1p", "apply_residual_connection_post_layernorm", "rotary_interleaved", "squared_relu"),
        *("quick_geglu", "multi_latent_attention", "qk_layernorm", "qk_l2_norm", "window_size", "no_rope_freq"),
        *("mtp_num_layers", "attention_output_gate", "is_hybrid_model", "use_mup", "softmax_scale"),
        *("heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"),
        *("activation_func_clamp_value", "glu_linear_offset", "experimental_attention_variant"),
        *("retro_add_retriever", "num_experts_switch"),
    ),
    (False, 0, 0.0),
) | {
    "num_experts": (0, 1),
    "rotary_seq_len_interpolation_factor": (1, 1.0),
    "softmax_type": ("vanilla",),
    "glu_activation": ("swiglu",),  # bigscience's
}
"""Argument -> its values, besides None, with which a model computes what ours does."""


def require_ours(path: Path, args: Mapping[str, Any]) -> None:
    """Require that no argument makes a model that ours cannot be.

    Raises:
        CheckpointError: some do; they are named with their values.
    """
    wrong = [name for name, allowed in ALLOWED.items() if not _is_allowed(name, args.get(name), allowed)]
    if wrong:
        raise not_ours(path, ", ".join(f"{name} {bounded(args[name])}" for name in wrong))


def _is_allowed(name: str, value: Any, allowed: tuple[Any, ...]) -> bool:
    if name == "num_experts" and isinstance(value, list | tuple):  # microsoft's has a number for each group of layers
        return all(_is_allowed("", each, allowed) for each in value)
    return value is None or any(type(value) is type(each) and value == each for each in allowed)
