"""Names of weights in the modules of a pipeline, and ours for them.

GPT-NeoX (megatron/model/transformer.py): `attention.query_key_value`, and in the MLP `dense_h_to_4h` until September
2024, `linear1` since then, `w1`, `w2`, `w3` in the Llama MLP of 2023. Megatron-DeepSpeed (megatron/model/gpt_model.py,
GPTModelPipe): `self_attention.query_key_value`, a final norm without name, and `lm_head`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.convert.formats.neox_layers import transformer_layers
from pretrain.tools.convert.lazy_tensor import equal_to, joined
from pretrain.tools.convert.rank_parts import not_known
from pretrain.tools.convert.weight_names import name_in_layer

if TYPE_CHECKING:
    from pretrain.tools.convert.formats.neox_layers import Layers
    from pretrain.tools.convert.lazy_tensor import LazyTensor


_OUTSIDE = {
    "word_embeddings": "embedding.word_embeddings",
    "position_embeddings": "embedding.position_embeddings",
    "word_embeddings.norm": "embedding_layernorm",
    "norm": "decoder.final_layernorm",
    "final_linear": "output_layer",
    "lm_head": "output_layer",
}
_MLP = {"mlp.linear1": "mlp.linear_fc1", "mlp.linear2": "mlp.linear_fc2", "mlp.w2": "mlp.linear_fc2"}
_GATE, _UP = "mlp.w1.weight", "mlp.w3.weight"
_EMBEDDING, _OUR_EMBEDDING = "word_embeddings.weight", "embedding.word_embeddings.weight"
_NAMELESS = {"weight", "bias"}
ROW_BIASES = (".self_attention.linear_proj.bias", ".mlp.linear_fc2.bias")
"""Ends of our names of the biases of row-parallel layers, which every rank has."""


def our_parts(layers: Layers, *, is_untied: bool) -> dict[str, list[LazyTensor]]:
    """Return each weight's parts by our names; gate and up projections of the Llama MLP become one.

    Args:
        layers: the modules.
        is_untied: keep the embedding of a tied output layer, which is the whole module once more, as a weight of its
            own. Otherwise it must equal the first; its positions, which no gradient reaches there, need not.

    Raises:
        CheckpointError: a layer is missing, or a weight is not known; while they are read, if the two embeddings
            differ.
    """
    numbers = sorted(transformer_layers(layers.path, layers.parts))
    first = next((number for number, weights in sorted(layers.parts.items()) if _EMBEDDING in weights), None)
    parts: dict[str, list[LazyTensor]] = {}
    for number, weights in sorted(layers.parts.items()):
        if number in numbers:
            prefix = f"decoder.layers.{numbers.index(number)}."
            named = {name: _in_layer(name) for name in weights}
        elif _EMBEDDING in weights and number != first:
            places = (f"{_EMBEDDING} of layer {first}", f"{_EMBEDDING} of layer {number}")
            both = zip(parts[_OUR_EMBEDDING], weights[_EMBEDDING], strict=True)
            if is_untied:
                parts["output_layer.weight"] = weights[_EMBEDDING]
            else:
                parts[_OUR_EMBEDDING] = [equal_to(one, other, layers.path, places) for one, other in both]
            continue
        else:
            prefix = ""
            is_final = bool(numbers) and number > max(numbers) and weights.keys() <= _NAMELESS
            named = {name: f"decoder.final_layernorm.{name}" if is_final else _outside(name) for name in weights}
        if unknown := [name for name, our in named.items() if our is None or prefix + our in parts]:
            raise not_known(layers.path, [f"{name} of layer {number}" for name in unknown])
        parts |= {f"{prefix}{our}": weights[name] for name, our in named.items()}
        if prefix and f"{prefix}{_GATE}" in parts and f"{prefix}{_UP}" in parts:
            halves = zip(parts.pop(f"{prefix}{_GATE}"), parts.pop(f"{prefix}{_UP}"), strict=True)
            parts[f"{prefix}mlp.linear_fc1.weight"] = [joined([gate, up], 0) for gate, up in halves]
    return parts


def _in_layer(name: str) -> str | None:
    if name in {_GATE, _UP}:
        return name
    module, _, kind = name.rpartition(".")
    kind = "weight" if kind == "scale" else kind  # GPT-NeoX's RMSNorm
    return f"{_MLP[module]}.{kind}" if module in _MLP else name_in_layer(f"{module}.{kind}")


def _outside(name: str) -> str | None:
    module, _, kind = name.rpartition(".")
    kind = "weight" if kind == "scale" else kind
    return f"{_OUTSIDE[module]}.{kind}" if module in _OUTSIDE and kind in _NAMELESS else None
