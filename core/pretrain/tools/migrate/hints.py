"""Hints for a flag or a key of another program: its name here, or why nothing needs it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from pretrain.recipe.recipe import keys_of_recipe
from pretrain.recipe.section import as_text
from pretrain.tools.migrate.meaning import Mapped, NotNeeded, NotSupported
from pretrain.tools.migrate.megatron.data import is_number
from pretrain.tools.migrate.megatron.meanings import BUILD_MEANINGS, LAUNCHERS, MEANINGS, meaning_of, spelled
from pretrain.tools.migrate.neox import meanings as neox

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pretrain.tools.migrate.meaning import Meaning

_SAMPLES = "SAMPLES"
_WORKED_OUT = {
    "train_tokens": _SAMPLES,
    "lr_warmup_tokens": _SAMPLES,
    "lr_decay_tokens": _SAMPLES,
    "num_layers_per_virtual_pipeline_stage": "CHUNKS",
    "pipeline_model_parallel_layout": "LAYERS",
    "pad_vocab_size_to": "MULTIPLE",
    "padded_vocab_size": "MULTIPLE",
    "iterations_to_skip": "ITERATIONS",
    **dict.fromkeys(("mscale", "mscale_all_dim", "rope_scaling_mscale", "rope_scaling_mscale_all_dim"), "FACTOR"),
}
"""Flags whose number counts something else than the key's -> what stands for the value."""

_IN_SHORT: dict[str, Meaning] = {
    "zero_optimization": Mapped("engine.zero", note="with engine.name=deepspeed"),
    "gradient_accumulation_steps": NotNeeded(
        "no effect", "it follows: global_batch_size / (micro_batch_size x data-parallel size)"
    ),
    "num_moe_experts": MEANINGS["num_experts"],
}
"""Keys of GPT-NeoX whose meaning is about more than a hint can say, and megatron-core's name of a flag."""

_NANOGPT: dict[str, Meaning] = {
    "n_layer": Mapped("model.num_layers"),
    "n_head": Mapped("model.num_attention_heads"),
    "n_embd": Mapped("model.hidden_size"),
    "block_size": Mapped("model.seq_length"),
    "bias": Mapped("model.add_bias_linear"),
    "learning_rate": Mapped("optimizer.lr"),
    "grad_clip": Mapped("optimizer.clip_grad"),
    "max_iters": Mapped("train.train_iters"),
    "warmup_iters": Mapped("schedule.lr_warmup_iters"),
    "dropout": Mapped("model.hidden_dropout", note="and model.attention_dropout"),
    "beta1": Mapped("optimizer.adam_beta1"),
    "beta2": Mapped("optimizer.adam_beta2"),
    "out_dir": NotNeeded("option", "--run-dir"),
    "backend": NotNeeded("option", "--backend"),
}
"""Settings of nanoGPT's files, where no other program has the name: keys of the same number, and options."""

_SAME_NUMBER = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "pipe_parallel_size", "checkpoint_factor"),
    *("rotary_pct", "rotary_emb_base", "rms_norm_epsilon", "intermediate_size"),
}
"""Keys of GPT-NeoX whose number is the key's here; others make one only together."""

_OF_ONE_WORD = {"activation", "hysteresis", "norm"}
"""Names of one word that mean the same everywhere; others, such as --device, mean something else elsewhere."""


_OF_BLENDS = {"data.path": "data.blend"} | {
    key: key for key in ("data.train_data_path", "data.valid_data_path", "data.test_data_path")
}
"""Keys of one token file, and the key that takes several."""


class _Found(NamedTuple):
    name: str  # dest
    meaning: Meaning  # of it
    given: Any  # value of a switch by its spelling: False of --no-x; None for a part of a value


def flag_of_run(flag: str, values: Sequence[str] = ()) -> str:
    """Return the equivalent in `pretrain run` of a flag of a training script; empty for an unknown one."""
    found = _find(_name(flag))
    match found:
        case None:
            return ""
        case _Found(meaning=NotNeeded("option", option)):
            return f"here it is {option}."
        case _Found(meaning=Mapped() as carried):
            return f"here {_as_option(found, carried, values)}."
        case _:
            return f"{_sentence(found.meaning)}."


def flag_of_build(flag: str) -> str:
    """Return the equivalent in `pretrain data build` of a flag of preprocess_data.py; empty for an unknown one."""
    match BUILD_MEANINGS.get(_name(flag)):
        case None:
            return ""
        case NotNeeded("option", option):
            return f"here it is {option}."
        case meaning:
            return f"{_sentence(meaning)}."


def key_of_recipe(path: str, given: object) -> str:
    """Return the equivalent of an unknown key of a recipe, "data.data_impl"; empty if there is none."""
    key = path.rpartition(".")[2]
    found = _find(_name(key))
    if found is None or (isinstance(found.meaning, Mapped) and found.meaning.key.rpartition(".")[2] == key):
        return ""
    match found.meaning:
        case NotNeeded("option", option):
            return f" It is not a key of a recipe: give pretrain {option}."
        case Mapped() as carried:
            return f" {_as_key(found, carried, given)}."
    return f" It is {_sentence(found.meaning)}."


def _as_option(found: _Found, meaning: Mapped, values: Sequence[str]) -> str:
    """Return "it is --set section.key=value" and a note; without a value to give, how the key is worked out."""
    if meaning.key in _OF_BLENDS and len(values) > 1:
        parts = ", ".join(_parts(values))
        return f"it is --set {shlex.quote(f'{_OF_BLENDS[meaning.key]}=[{parts}]')}"
    is_switch = found.given is False or any(value is True for value in meaning.values)
    given = found.given if is_switch or found.given is None or not values else " ".join(values)
    value = _WORKED_OUT.get(found.name) or _value(meaning, given)
    if value is None:
        return f"it goes into {meaning.key} ({meaning.how})"
    return f"it is --set {shlex.quote(f'{meaning.key}={value}')}{_note(found, meaning)}"


def _as_key(found: _Found, meaning: Mapped, given: object) -> str:
    """Return "It is written section.key: value" and a note."""
    value: str | None = _WORKED_OUT.get(found.name)
    if found.given is None:
        return f"It goes into {meaning.key} ({meaning.how})"
    if isinstance(given, bool):
        value = _value(meaning, given == found.given)
        if value is None:
            return f"It goes into {meaning.key} ({meaning.how})" if given else "It is false: leave it out"
    elif value is None and meaning.values:
        value = _value(meaning, found.given) if True in meaning.values else _translated(meaning, str(given))
    return f"It is written {meaning.key}{': ' * bool(value)}{value or ''}{_note(found, meaning)}"


def _value(meaning: Mapped, given: object) -> str | None:
    """Return a value as a recipe has it; None for one that is not supported, or whose key needs other flags too."""
    if isinstance(given, str):
        is_choice = any(isinstance(value, str) for value in meaning.values)
        return _translated(meaning, given) or (None if is_choice else given)
    for value, ours in meaning.values.items():
        if value is given:
            return as_text(ours)
    return None if meaning.how or meaning.values else as_text(given)


def _translated(meaning: Mapped, given: str) -> str | None:
    return next((as_text(ours) for value, ours in meaning.values.items() if value == given), None)


def _note(found: _Found, meaning: Mapped) -> str:
    note = meaning.note or (meaning.how if found.name in _WORKED_OUT else "")
    return f" ({note})" if note else ""


def _sentence(meaning: Meaning) -> str:
    """Return "not needed: ..." or "not supported: ...", without a period."""
    match meaning:
        case NotNeeded(text=text):
            return f"not needed: {text}"
        case NotSupported(text):
            return f"not supported: {text}"
    raise TypeError(meaning)


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_").lower()


_BY_NAME = {name.lower(): name for name in MEANINGS}


def _find(name: str) -> _Found | None:
    """Return the flag of a name with underscores in small letters: Megatron's, a launcher's or GPT-NeoX's."""
    dest = spelled(name, _BY_NAME)
    meaning = MEANINGS.get(_BY_NAME.get(dest.name, dest.name)) or LAUNCHERS.get(name) or _IN_SHORT.get(name)
    meaning = meaning or _NANOGPT.get(name)
    if meaning is None and name not in neox.MEANINGS:  # of all flags that begin so: --moe-..., --no-inprocess-...
        meaning = meaning_of(name.removeprefix("no_").removeprefix("disable_"))
    if meaning is not None:
        return _Found(dest.name, meaning, True if dest.given is None else dest.given)
    if "_" not in name and name not in _OF_ONE_WORD:
        return None
    meaning = neox.MEANINGS.get(name)
    if meaning is None:
        known = keys_of_recipe()
        sections = {path.rpartition(".")[0] for path in known}
        same = next((path for path in known if path.rpartition(".")[2] == name and path not in sections), None)
        return None if same is None else _Found(name, Mapped(same), given=True)
    is_part = isinstance(meaning, Mapped) and meaning.how and not meaning.values and name not in _SAME_NUMBER
    return _Found(name, meaning, given=None if is_part else True)


def _parts(values: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a blend: weight, path, weight, path, ...; or paths alone, whose weights are to be written."""
    weights, paths = (values[::2], values[1::2]) if is_number(values[0]) else (["WEIGHT"] * len(values), values)
    for weight, path in zip(weights, paths, strict=False):
        yield f"{{weight: {weight}, path: {path}}}"
