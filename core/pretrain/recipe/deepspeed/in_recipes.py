"""Advice for DeepSpeed's own keys in section engine.zero of a recipe, where they are unknown."""

from __future__ import annotations

from pretrain.recipe.deepspeed.same import SAME
from pretrain.recipe.deepspeed.settled import BLOCKS, REFUSED, SETTLED, UNREAD, advice

_RENAMED = {
    "cpu_offload": "engine.zero.offload_optimizer: {device: cpu}",
    "cpu_offload_param": "engine.zero.offload_param: {device: cpu}",
    "cpu_offload_params": "engine.zero.offload_param: {device: cpu}",
    "cpu_offload_use_pin_memory": "pin_memory of engine.zero.offload_optimizer or engine.zero.offload_param",
}
_SECTION = "engine.zero."


def of_deepspeed(path: str) -> str:
    """Return the advice for an unknown key of a recipe that is one of DeepSpeed's; empty otherwise."""
    if not path.startswith(_SECTION):
        return ""
    key = path.removeprefix(_SECTION)
    json_path = f"zero_optimization.{key}"
    if key in _RENAMED or json_path in SAME:
        return f" It is written {_RENAMED.get(key) or SAME[json_path]}."
    if json_path in UNREAD:
        return " Nothing in DeepSpeed 0.19 reads it, at any stage. Delete it."
    if json_path in SETTLED or json_path in REFUSED or json_path in BLOCKS:
        return f" It is DeepSpeed's; {advice(json_path)}"
    return ""
