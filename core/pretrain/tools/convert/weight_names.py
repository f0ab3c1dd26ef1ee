"""Weights by Megatron's names: ours for them, how tensor-parallel ranks divide them, what model their shapes tell.

2019: `transformer.layers.0.attention`; 2.x and 3.x: `encoder.layers.0.self_attention.query_key_value`, since 2023
`input_norm` (ParallelTransformerLayer in megatron/legacy/model/transformer.py); megatron-core:
`decoder.layers.0.self_attention.linear_qkv`, where Transformer Engine's layers contain the norms before them:
`linear_qkv.layer_norm_weight` (megatron/core/models/gpt/gpt_layer_specs.py).
"""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.lazy_tensor import LazyTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

Shapes = dict[str, tuple[int, ...]]  # name of a weight -> its shape

# ColumnParallelLinear and VocabParallelEmbedding: the first dimension is divided
_BY_ROWS = re.compile(
    r"\.(query_key_value|query|key_value|dense_h_to_4h|linear_qkv|linear_fc1|linear1|w1|w3)\.(weight|bias)$"
    r"|(^|[./])(word_embeddings|final_linear|lm_head|output_layer)\.weight$"
)
# RowParallelLinear: the second dimension is divided; the bias is whole on every rank
_BY_COLUMNS = re.compile(r"(attention\.dense|\.dense_4h_to_h|\.linear_proj|\.linear_fc2|\.linear2|\.w2)\.weight$")
# what every rank has whole
_WHOLE = re.compile(
    r"norm[\w]*\.(weight|bias|scale)$|(^|[./])position_embeddings\.weight$"
    r"|(attention\.dense|\.dense_4h_to_h|\.linear_proj|\.linear_fc2|\.linear2)\.bias$"
)
_LONGEST, _LARGEST = 60, 10**18  # bounds of a value that is written out: characters, and the size of a number
_LAYER = re.compile(r"layers\.(\d+)\.")
_NO_WEIGHT = re.compile(r"(rotary_emb|rotary_pos_emb)\.inv_freq$|attention\.(bias|masked_bias)$|_extra_state")
_SECOND_OF_MLP = (".dense_4h_to_h.weight", ".linear_fc2.weight", ".linear2.weight", ".w2.weight")
_SECOND_OF_EXPERTS, _SECOND_OF_SHARED = ".experts.linear_fc2.weight", ".shared_experts.linear_fc2.weight"
_DEEPEST = 20  # levels of a state dict that are looked at, fewer than Python's stack has
_OUTPUTS = ("final_linear.weight", "lm_head.weight", "output_layer.weight")
# settings of a recipe that Megatron-LM and its forks call by the same name
_SETTINGS = (
    *("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size"),
    *("max_position_embeddings", "seq_length", "normalization", "rotary_percent", "padded_vocab_size"),
    *("untie_embeddings_and_output_weights", "add_bias_linear"),
)


def flat_weights(state: Any) -> dict[str, LazyTensor]:
    """Return the weights of a state dict, which may be nested; the names of the levels are joined by dots."""
    return {name: tensor for name, tensor in flat_tensors(state).items() if isinstance(tensor, LazyTensor)}


def flat_tensors(state: Any) -> dict[str, LazyTensor | Tensor]:
    """Return the same with single numbers, which are no weights."""
    return {name: tensor for name, tensor in _flat(state, "", _DEEPEST, set()) if _NO_WEIGHT.search(name) is None}


def divided_dimension(name: str) -> int | None:
    """Return the dimension along which tensor-parallel ranks divide a weight; None if every rank has it whole."""
    if _BY_ROWS.search(name):
        return 0
    return 1 if _BY_COLUMNS.search(name) else None


def whole_shape(name: str, shape: tuple[int, ...], tensor: int) -> tuple[int, ...]:
    """Return the shape of a weight over all tensor-parallel ranks."""
    dim = divided_dimension(name)
    return shape if dim is None else (*shape[:dim], shape[dim] * tensor, *shape[dim + 1 :])


def number_of_layers(names: Iterable[str]) -> int:
    """Return how many layers the weights belong to."""
    return len({found[1] for name in names if (found := _LAYER.search(name))})


def count(shapes: Mapping[str, tuple[int, ...]], tensor: int) -> int | None:
    """Return the number of parameters; None where ranks may divide a weight whose name is not known."""
    known = (_BY_ROWS, _BY_COLUMNS, _WHOLE)
    if not shapes or (tensor > 1 and not all(any(kind.search(name) for kind in known) for name in shapes)):
        return None
    return sum(map(math.prod, shapes.values()))


def model_of(shapes: Mapping[str, tuple[int, ...]], layers: int) -> dict[str, Any]:
    """Return the settings of a recipe's section `model` that whole shapes tell, and `padded_vocab_size`."""
    model: dict[str, Any] = {"num_layers": layers} if layers else {}
    for name, shape in shapes.items():
        if name.endswith("word_embeddings.weight"):
            model["padded_vocab_size"], model["hidden_size"] = shape
        elif name.endswith("position_embeddings.weight"):
            model["max_position_embeddings"] = shape[0]
            model["position_embedding_type"] = "learned_absolute"
        elif name.endswith(_SECOND_OF_SHARED):
            model["moe_shared_expert_intermediate_size"] = shape[-1]
        elif name.endswith(_SECOND_OF_EXPERTS):
            model["num_experts"], _, model["moe_ffn_hidden_size"] = shape[-3:]
            model.setdefault("add_bias_linear", False)  # experts have no biases
        elif name.endswith(_SECOND_OF_MLP) and ".experts." not in name:
            model["ffn_hidden_size"] = shape[-1]
            model["add_bias_linear"] = f"{name.removesuffix('weight')}bias" in shapes
    if "hidden_size" in model:
        model["untie_embeddings_and_output_weights"] = any(name.endswith(_OUTPUTS) for name in shapes)
    return model


def args_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments in a file: a namespace of Megatron-LM, a dict of GPT-NeoX; releases of 2019 have none."""
    args = state.get("args")
    if isinstance(args, argparse.Namespace):
        return vars(args)
    return args if isinstance(args, dict) else {}


def whole_number(args: Mapping[str, Any], name: str, least: int = 0) -> int | None:
    """Return an argument that counts something; None where it is absent or no such number."""
    value = args.get(name)
    return value if type(value) is int and value >= least else None


def bounded(value: object) -> str:
    """Return a word or a number from a file as a short text; of anything else, which may be endless, the type."""
    return str(value)[:_LONGEST] if _is_plain(value) else f"of type {type(value).__name__[:_LONGEST]}"


def plain(value: Any) -> Any:
    """Return a word or a number as it is, and of anything else a short text."""
    return value if _is_plain(value) else bounded(value)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | float) or (isinstance(value, int) and abs(value) < _LARGEST)


def settings_of_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe's section `model` among the arguments of Megatron-LM or a fork."""
    model = {name: plain(args[name]) for name in _SETTINGS if args.get(name) is not None}
    if not args.get("group_query_attention", False):
        model.pop("num_query_groups", None)  # Megatron-LM's default is 1, which counts only with this switch
    if args.get("swiglu"):
        model["activation"] = "swiglu"
    if args.get("position_embedding_type") in ("learned_absolute", "rope"):
        model["position_embedding_type"] = args["position_embedding_type"]
    return model


def require_sizes(folder: Path, args: Mapping[str, Any], found: Mapping[str, int]) -> None:
    """Require that a layout or a number of layers is as the arguments say, where they say it."""
    for name, number in found.items():
        if isinstance(args.get(name), int) and args[name] != number:
            msg = f"{folder} has files for {name} {number}, but {args[name]} in its arguments.\nCopy the missing files."
            raise CheckpointError(msg)


_THEIR_LAYER = re.compile(r"(?:language_model\.)?(?:transformer|encoder|decoder)\.layers\.(\d+)\.(.+)")
# our part of a layer -> its name in Megatron-LM 3.0, and others
MODULES = {
    "input_layernorm": ("input_layernorm", "input_norm", "self_attention.linear_qkv.layer_norm"),
    "self_attention.linear_qkv": ("self_attention.query_key_value", "attention.query_key_value"),
    "self_attention.q_layernorm": (),
    "self_attention.k_layernorm": (),
    "self_attention.linear_proj": ("self_attention.dense", "attention.dense"),
    "pre_mlp_layernorm": ("post_attention_layernorm", "post_attention_norm", "mlp.linear_fc1.layer_norm"),
    "mlp.linear_fc1": ("mlp.dense_h_to_4h",),
    "mlp.linear_fc2": ("mlp.dense_4h_to_h",),
}
_OURS = {theirs: ours for ours, names in MODULES.items() for theirs in (ours, *names)}
_OUTSIDE = {
    "embedding.word_embeddings": "embedding.word_embeddings",
    "embedding.position_embeddings": "embedding.position_embeddings",
    "embedding.word_embeddings.norm": "embedding_layernorm",  # bigscience's --embed-layernorm
    "output_layer": "output_layer",
    **{
        f"{stack}.{norm}": "decoder.final_layernorm"
        for stack in ("transformer", "encoder", "decoder")
        for norm in ("final_layernorm", "final_norm")
    },
}


def our_name(name: str, first_layer: int) -> str | None:
    """Return our name of a weight; None if no weight of ours has its place."""
    if found := _THEIR_LAYER.fullmatch(name):
        inside = name_in_layer(found[2])
        return None if inside is None else f"decoder.layers.{first_layer + int(found[1])}.{inside}"
    module, _, kind = name.removeprefix("language_model.").rpartition(".")
    return f"{_OUTSIDE[module]}.{kind}" if module in _OUTSIDE and kind in {"weight", "bias"} else None


def name_in_layer(name: str) -> str | None:
    """Return our name of a layer's weight without the layer; None if it is not known."""
    module, _, kind = name.replace(".layer_norm_", ".layer_norm.").rpartition(".")
    return f"{_OURS[module]}.{kind}" if module in _OURS and kind in {"weight", "bias"} else None


def _flat(state: Any, prefix: str, depth: int, seen: set[int]) -> Iterator[tuple[str, LazyTensor | Tensor]]:
    if isinstance(state, LazyTensor | Tensor):
        yield prefix, state
    elif isinstance(state, dict) and depth:
        if state and id(state) in seen:  # dicts that hold one another twice make names without end of few bytes
            msg = f"The state dict holds the same part twice, once as {prefix[:100]}.\nCopy the file again."
            raise DamageError(msg)
        seen.add(id(state))
        for key, value in state.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key), depth - 1, seen)
