"""Names of weights in Megatron-DeepSpeed, and ours for them.

Without a pipeline they are Megatron-LM's of before megatron-core: `language_model.encoder.layers.N...`
(TransformerLanguageModel in megatron/model/language_model.py). In a universal checkpoint of a pipeline a name begins
with the number of its module, and that of a tied embedding with `tied_modules.embed` (GPTModelPipe in
megatron/model/gpt_model.py); how many modules come before the first layer differs between forks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pretrain.errors import CheckpointError
from pretrain.tools.convert.rank_parts import not_known
from pretrain.tools.convert.weight_names import name_in_layer, our_name

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


_WRAPPED = re.compile(r"(module\.)+")
_NUMBERED = re.compile(r"(\d+)\.(.+)")
_TIED = "tied_modules.embed."
_IN_PIPELINE = {
    "word_embeddings.weight": "embedding.word_embeddings.weight",
    "position_embeddings.weight": "embedding.position_embeddings.weight",
    "word_embeddings.norm.weight": "embedding_layernorm.weight",
    "word_embeddings.norm.bias": "embedding_layernorm.bias",
    "weight": "decoder.final_layernorm.weight",
    "bias": "decoder.final_layernorm.bias",
    "lm_head.weight": "output_layer.weight",
}
"""Their name in a module outside of the layers -> ours."""

_THEIRS = {
    "input_layernorm": "input_layernorm",
    "self_attention.linear_qkv": "self_attention.query_key_value",
    "self_attention.linear_proj": "self_attention.dense",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.linear_fc1": "mlp.dense_h_to_4h",
    "mlp.linear_fc2": "mlp.dense_4h_to_h",
}
"""Our part of a layer -> theirs."""


def our_names(names: Collection[str], folder: Path) -> dict[str, str]:
    """Return their name -> ours, of all weights of a checkpoint.

    Args:
        names: of the weights.
        folder: the checkpoint, for errors.

    Raises:
        CheckpointError: names are not known, or two are of one weight.
    """
    modules = {name: found for name in names if (found := _NUMBERED.fullmatch(_bare(name)))}
    layers = [int(found[1]) for found in modules.values() if name_in_layer(found[2]) is not None]
    before = min(layers, default=0)
    ours = {name: _ours(_bare(name), before) for name in names}
    if unknown := sorted(name for name, our in ours.items() if our is None):
        raise not_known(folder, unknown)
    taken: dict[str, str] = {}
    for name, our in ours.items():
        if our is not None and (other := taken.setdefault(our, name)) != name:
            msg = f"{folder} has {other[:100]} and {name[:100]}, which are one weight.\nRemove one of them."
            raise CheckpointError(msg)
    return {name: our for our, name in taken.items()}


def their_name(name: str) -> str:
    """Return Megatron-DeepSpeed's name of a weight of ours, without a pipeline."""
    if name.startswith("decoder.layers."):
        _, _, number, inside = name.split(".", 3)
        module, _, kind = inside.rpartition(".")
        return f"language_model.encoder.layers.{number}.{_THEIRS[module]}.{kind}"
    return f"language_model.{name.replace('decoder.', 'encoder.', 1)}"


def _bare(name: str) -> str:
    wrapped = _WRAPPED.match(name)
    return name[wrapped.end() :] if wrapped else name


def _ours(name: str, before: int) -> str | None:
    if name.startswith(_TIED):
        return _IN_PIPELINE.get(name.removeprefix(_TIED))
    if found := _NUMBERED.fullmatch(name):
        inside = name_in_layer(found[2])
        return f"decoder.layers.{int(found[1]) - before}.{inside}" if inside else _IN_PIPELINE.get(found[2])
    return our_name(name, 0)
