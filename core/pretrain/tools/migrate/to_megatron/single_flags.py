"""Keys that one flag of Megatron-LM gives: the reverse of the meanings of its flags."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pretrain.tools.migrate.meanings.meaning import Carried
from pretrain.tools.migrate.meanings.megatron.meanings import meaning_of
from pretrain.tools.migrate.to_megatron.answer import NOTHING, Answer
from pretrain.tools.migrate.to_megatron.flag_words import TARGET, flags_by_name, given

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe

PLAIN: Mapping[str, str] = {
    "model.make_vocab_size_divisible_by": "make_vocab_size_divisible_by",
    "model.normalization": "normalization",
    "model.position_embedding_type": "position_embedding_type",
    "data.cache_path": "data_cache_path",
    "train.micro_batch_size": "micro_batch_size",
    "train.global_batch_size": "global_batch_size",
    "train.train_samples": "train_samples",
    "train.manual_gc_interval": "manual_gc_interval",
    "optimizer.weight_decay": "weight_decay",
    "schedule.lr_warmup_iters": "lr_warmup_iters",
    "schedule.lr_warmup_samples": "lr_warmup_samples",
    "schedule.lr_warmup_fraction": "lr_warmup_fraction",
    "schedule.lr_decay_iters": "lr_decay_iters",
    "schedule.lr_decay_samples": "lr_decay_samples",
    "precision.loss_scale": "loss_scale",
    "precision.initial_loss_scale": "initial_loss_scale",
    "precision.loss_scale_window": "loss_scale_window",
    "precision.hysteresis": "hysteresis",
    "precision.min_loss_scale": "min_loss_scale",
    "parallel.tensor_model_parallel_size": "tensor_model_parallel_size",
    "parallel.sequence_parallel": "sequence_parallel",
    "recompute.distribute_saved_activations": "distribute_saved_activations",
    "checkpoint.load": "load",
    "checkpoint.finetune": "finetune",
    "evaluation.iters": "eval_iters",
}
"""Dest by key, where the key needs several flags only in the other direction or in other versions."""


@functools.cache
def single_flags() -> Mapping[str, str]:
    """Return the dest of each key that one flag gives, by key."""
    found: dict[str, str] = {}
    for name in flags_by_name():
        meaning = meaning_of(name, TARGET)
        if isinstance(meaning, Carried) and not meaning.how and not _is_of_older_name(meaning.key, name, found):
            found[meaning.key] = name
    return {**found, **PLAIN}


def _is_of_older_name(key: str, name: str, found: Mapping[str, str]) -> bool:
    """Say whether a key has a flag of its own name, such as num_layers beside encoder_num_layers."""
    return key in found and key.rpartition(".")[2] != name


def answer_of(recipe: Recipe, key: str, name: str) -> Answer:
    """Return the flag, unless Megatron-LM's default for it is the recipe's value.

    Args:
        recipe: complete.
        key: "section.key".
        name: dest of its flag.
    """
    value = value_of(recipe, key)
    values, default = _values(name), flags_by_name()[name][0].default
    if value is None or value == values.get(default, default):
        return NOTHING
    try:
        return Answer((given(name, _there(values, value)),))
    except ValueError as error:
        return Answer(change=str(error).rstrip("."))


def _values(name: str) -> Mapping[Any, Any]:
    meaning = meaning_of(name, TARGET)
    return meaning.values if isinstance(meaning, Carried) else {}


def _there(values: Mapping[Any, Any], value: Any) -> Any:
    """Return what a value of the recipe is called there: the same, if it is one of several names."""
    names = [there for there, here in values.items() if here == value]
    return value if value in names or not names else names[0]


def value_of(recipe: Recipe, key: str) -> Any:
    """Return the value of a key; None if a section around it is absent."""
    value: Any = recipe
    for part in key.split("."):
        value = None if value is None else getattr(value, part)
    return value
