"""Words of Megatron-LM's flags, spelled and written as its parser has them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.recipe import Recipe
from pretrain.tools.migrate.meaning import Mapped
from pretrain.tools.migrate.megatron.meanings import meaning_of
from pretrain.tools.migrate.programs import program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.tools.migrate.programs import Flag

TARGET = "megatron-lm-2026.08"
"""The version whose arguments are written."""


@functools.cache
def flags_by_name() -> Mapping[str, Sequence[Flag]]:
    """Return the flags of the version by dest; several where one switch is on and another off."""
    found: dict[str, list[Flag]] = {}
    for spelling, flag in program(TARGET).spelled.items():
        if spelling == flag.spellings[0]:
            found.setdefault(flag.name, []).append(flag)
    return found


def given(name: str, *values: Any) -> Words:
    """Return the words that give a flag its value, True by default; a ValueError if it cannot have that value."""
    flags = flags_by_name()[name]
    if flags[0].kind == "switch":
        wanted = values[0] if values else True
        return (_spelling(next(flag for flag in flags if flag.given == wanted)),)
    texts = [_text(flags[0], value) for value in values]
    spelling = _spelling(flags[0])
    if len(texts) == 1 and texts[0].startswith("-"):  # argparse would take it for a flag
        return (f"{spelling}={texts[0]}",)
    return (spelling, *texts)


def _spelling(flag: Flag) -> str:
    """Return how a flag is written; one without underscores if there is one."""
    return min(flag.spellings, key=lambda spelling: "_" in spelling)


def _text(flag: Flag, value: Any) -> str:
    if flag.kind == "int":
        if value != int(value):
            msg = f"{_spelling(flag)} takes whole numbers."
            raise ValueError(msg)
        return str(int(value))
    return repr(float(value)) if flag.kind == "float" else str(value)


Words = tuple[str, ...]
"""A flag with its values."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Flags that say the same as a key, and what they leave out."""

    flags: tuple[Words, ...] = ()
    change: str = ""  # what is different there, a sentence without its period; empty if nothing is


NOTHING = Answer()
"""The answer for a key whose value Megatron-LM has without a flag."""

Function = Callable[[Recipe], Answer]


def when(condition: object, name: str, *values: Any) -> Answer:
    """Return a flag with its values, or nothing where a condition does not hold."""
    return Answer((given(name, *values),)) if condition else NOTHING


_OF_ONE_NAME = """
    model.make_vocab_size_divisible_by model.normalization model.moe_token_drop_policy
    train.micro_batch_size train.global_batch_size train.train_samples train.manual_gc_interval optimizer.weight_decay
    schedule.lr_warmup_iters schedule.lr_warmup_samples schedule.lr_warmup_fraction schedule.lr_decay_iters
    schedule.lr_decay_samples precision.loss_scale precision.initial_loss_scale precision.loss_scale_window
    precision.hysteresis precision.min_loss_scale parallel.tensor_model_parallel_size parallel.sequence_parallel
    recompute.distribute_saved_activations checkpoint.load checkpoint.finetune
"""
PLAIN: Mapping[str, str] = {
    **{key: key.rpartition(".")[2] for key in _OF_ONE_NAME.split()},
    "data.cache_path": "data_cache_path",
    "evaluation.iters": "eval_iters",
}
"""Dest by key, where the key needs several flags only in the other direction or in other versions."""


@functools.cache
def single_flags() -> Mapping[str, str]:
    """Return the dest of each key that one flag gives, by key."""
    found: dict[str, str] = {}
    for name in flags_by_name():
        meaning = meaning_of(name, TARGET)
        if not isinstance(meaning, Mapped) or meaning.how:
            continue
        if meaning.key not in found or meaning.key.endswith(f".{name}"):  # num_layers wins over encoder_num_layers
            found[meaning.key] = name
    return {**found, **PLAIN}


def answer_of(recipe: Recipe, key: str, name: str) -> Answer:
    """Return the flag, unless Megatron-LM's default for it is the recipe's value."""
    value = value_of(recipe, key)
    meaning, default = meaning_of(name, TARGET), flags_by_name()[name][0].default
    values = meaning.values if isinstance(meaning, Mapped) else {}
    if value is None or value == values.get(default, default):
        return NOTHING
    names = [there for there, here in values.items() if here == value]  # what the value is called there
    try:
        return Answer((given(name, value if value in names or not names else names[0]),))
    except ValueError as error:
        return Answer(change=str(error).rstrip("."))


def value_of(recipe: Recipe, key: str) -> Any:
    """Return the value of a key; None if a section around it is absent."""
    value: Any = recipe
    for part in key.split("."):
        value = None if value is None else getattr(value, part)
    return value
