"""Names of weights in a sharded checkpoint, as megatron-core makes them.

The weights of all layers are stacked under one key, with the layer as the first dimension; norms have the names of
Transformer Engine's layers that contain them (TransformerLayer.sharded_state_dict and sharded_state_dict_keys_map).
"""

from __future__ import annotations

import re

from pretrain.checkpoint.common_state import is_weight

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_STACKED = "decoder.layers."
_NORMS = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}


def sharded_name(name: str) -> tuple[str, int | None]:
    """Return the key of a weight of ours, and its layer: its place in the key's first dimension, None without."""
    found = _LAYER.fullmatch(name)
    if found is None:
        return name, None
    rest = found[2]
    for ours, theirs in _NORMS.items():
        if rest.startswith(ours):
            rest = theirs + rest.removeprefix(ours)
    return _STACKED + rest, int(found[1])


def weight_names(key: str, layers: int) -> list[tuple[str, int | None]]:
    """Return our names of the weights under a key, each with its place in the first dimension; none for other state.

    Args:
        key: of a sharded checkpoint. Megatron-LM also writes keys that have the number of their layer.
        layers: size of the first dimension.
    """
    if not is_weight(key):
        return []
    numbered = _LAYER.fullmatch(key)
    if numbered is not None:
        return [(f"{_STACKED}{numbered[1]}.{_ours(numbered[2])}", None)]
    if key.startswith(_STACKED):
        rest = _ours(key.removeprefix(_STACKED))
        return [(f"{_STACKED}{number}.{rest}", number) for number in range(layers)]
    return [(key, None)]


def _ours(rest: str) -> str:
    for ours, theirs in _NORMS.items():
        if rest.startswith(theirs):
            return ours + rest.removeprefix(theirs)
    return rest
