"""Settings of a model in GPT-NeoX's configuration, which it saves as configs/*.yml with every checkpoint.

Names and defaults: NeoXArgsModel in megatron/neox_arguments/neox_args.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from pretrain.errors import DamageError
from pretrain.recipe.section import shown
from pretrain.tools.convert.formats.megatron_settings import not_ours

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pretrain.recipe.sections.model import ModelSection


_RENAMED = {
    **{name: name for name in ("num_layers", "hidden_size", "num_attention_heads", "seq_length")},
    "max_position_embeddings": "max_position_embeddings",
    "make_vocab_size_divisible_by": "make_vocab_size_divisible_by",
    "num_kv_heads": "num_query_groups",
    "rotary_emb_base": "rotary_base",
    "gpt_j_residual": "parallel_residual",
}
_OFF: dict[str, tuple[Any, ...]] = {
    "moe_num_experts": (0, 1),
    **dict.fromkeys(("use_qk_layernorm", "sliding_window_width", "num_unique_layers", "use_mup"), (False, 0)),
    "opt_pos_emb_offset": (0,),
    "soft_prompt_tuning": ({}, {"enabled": False}),
}
"""Setting that changes what a model computes in a way that ours cannot -> its values that do not."""

_NORMS = {"layernorm": ("LayerNorm", "layernorm_epsilon", 1e-5), "rmsnorm": ("RMSNorm", "rms_norm_epsilon", 1e-8)}
_POSITIONS = {"learned": "learned_absolute", "rotary": "rope"}
_GATED = ("swiglu", "silu", "swish")
"""Names of the activation of a gated MLP; the last two in the Llama MLP of 2023, whose gate is a weight of its own."""

_ATTENTION = {"global", "flash"}
_LARGEST = 1_000_000
"""Bytes of a file of settings."""


class _Loader(yaml.SafeLoader):
    """Loader of values without aliases (*name), by which a small file can be a huge value."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next value.

        Raises:
            YAMLError: it is an alias.
        """
        if self.check_event(yaml.AliasEvent):
            msg = "aliases (*name) are not read"
            raise yaml.YAMLError(msg)
        return super().compose_node(parent, index)


def saved_config(folder: Path) -> dict[str, Any]:
    """Return the configuration that lies in a checkpoint, or beside it; nothing where there is none.

    Raises:
        DamageError: a file of it is no YAML, or not one of settings, or has aliases, or is larger than 1 MB.
    """
    config: dict[str, Any] = {}
    place = next((each for each in (folder / "configs", folder.parent / "configs") if each.is_dir()), None)
    for path in sorted(place.glob("*.yml")) if place is not None else ():
        try:
            found = yaml.load(_text(path), _Loader)  # noqa: S506  a SafeLoader
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            msg = f"{path} is not valid YAML: {str(error).splitlines()[0][:200]}\nCopy it again."
            raise DamageError(msg) from error
        if not isinstance(found, dict):
            msg = f"{path} does not map names to settings.\nCopy it again."
            raise DamageError(msg)
        config |= {str(name).replace("-", "_"): value for name, value in found.items()}
    return config


def _text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        msg = f"it is larger than {_LARGEST:,} bytes"
        raise ValueError(msg)
    return content.decode()


def config_settings(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the section `model` that a whole configuration tells, with GPT-NeoX's defaults.

    Raises:
        CheckpointError: it is of a model that ours is not.
    """
    told = {ours: config[theirs] for theirs, ours in _RENAMED.items() if config.get(theirs) is not None}
    norm = _one_of(path, config, "norm", "layernorm", _NORMS)
    told["normalization"], epsilon, default = _NORMS[norm]
    told["layernorm_epsilon"] = config.get(epsilon, default)
    told["position_embedding_type"] = _POSITIONS[_one_of(path, config, "pos_emb", "learned", _POSITIONS)]
    told["rotary_percent"] = config.get("rotary_pct", 1.0)
    told["activation"] = _activation(path, config)
    _require_off(path, config)
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


def _activation(path: Path, config: Mapping[str, Any]) -> str:
    name = _one_of(path, config, "activation", "gelu", ("gelu", *_GATED))
    if name in _GATED:
        return "swiglu"
    return "gelu_tanh" if config.get("bias_gelu_fusion") else "gelu"


def _one_of(path: Path, config: Mapping[str, Any], name: str, default: str, known: Any) -> str:
    value = config.get(name, default)
    if not isinstance(value, str) or value not in known:
        raise not_ours(path, f"{name} {shown(value)}")
    return value


def _require_off(path: Path, config: Mapping[str, Any]) -> None:
    for name, off in _OFF.items():
        if config.get(name) is not None and config[name] not in off:
            raise not_ours(path, f"{name} {shown(config[name])}")
    kinds = set(_words(config.get("attention_config"), 4))
    if not kinds <= _ATTENTION:
        raise not_ours(path, f"attention_config {', '.join(sorted(kinds - _ATTENTION))[:60]}")


def _words(value: Any, depth: int) -> list[str]:
    """Return the words in nested lists, such as [[["global", "local"], 6]]."""
    if isinstance(value, str):
        return [value]
    return [word for each in value for word in _words(each, depth - 1)] if isinstance(value, list) and depth else []
