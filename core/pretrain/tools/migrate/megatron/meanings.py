"""Meanings of all flags of pretrain_gpt.py's training, of launchers and of preprocess_data.py."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pretrain.tools.migrate.meaning import Mapped, NotSupported, read_meanings, table_lines
from pretrain.tools.migrate.megatron import data, engine, experts, model, parallel, rope, training
from pretrain.tools.migrate.megatron.deepspeed_file import SCALES
from pretrain.tools.migrate.programs import program as program_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function

MEANINGS: Mapping[str, Meaning] = read_meanings("megatron") | read_meanings("mindspeed")
"""By dest, as argparse has it: "num_layers", "DDP_impl"; "moe_*" are those of `grouped` that begin so."""

LAUNCHERS: Mapping[str, Meaning] = read_meanings("launcher")
"""By the option without its leading dashes, with underscores."""

BUILD_MEANINGS: Mapping[str, Meaning] = read_meanings("preprocess")
"""Flags of preprocess_data.py, in the same way."""

GROUPED = "megatron_grouped.txt"
"""File of the flags' names, which tests/tools/migrate/programs/extract_flags.py extends."""

_GROUPS = {name: found for name, found in MEANINGS.items() if "*" in name}
_PARTS = (model, rope, experts, data, training, parallel, engine)

FUNCTIONS: Mapping[str, Function] = {key: found for part in _PARTS for key, found in part.FUNCTIONS.items()}
"""By key of the recipe."""

READ_BY_FUNCTIONS = frozenset(
    (
        *("ds_sequence_parallel_size", "masked_softmax_fusion"),
        *("scaled_masked_softmax_fusion", "transformer_impl", "use_legacy_models", "use_mcore_models"),
        *("weight_decay_incr_style", "num_experts", "use_precision_aware_optimizer"),
    )
)
"""Settings that the functions read beside those whose meaning is a key."""

_SCALE_OF_FILE = "fp16 of DeepSpeed's file with --deepspeed, else the flag"
_CLIP_OF_FILE = "gradient_clipping of DeepSpeed's file with --deepspeed, else the flag"
_DEEPSPEED: Mapping[str, Meaning] = {
    "clip_grad": Mapped("optimizer.clip_grad", how=_CLIP_OF_FILE),
    **{name: Mapped(f"precision.{name}", how=_SCALE_OF_FILE) for name in SCALES},
}
_OF_DEEPSPEED = NotSupported(
    "the model has no experts: those of DeepSpeed are not here", (0, 1, [0], [1]), other_model=True
)
_FSDP = "replicas have all weights: to split them, engine.name: deepspeed with engine.zero.stage: 3"

MEANINGS_OF: Mapping[str, Mapping[str, Meaning]] = {
    "megatron-deepspeed": {
        **_DEEPSPEED,
        "num_experts": _OF_DEEPSPEED,
        "DDP_impl": NotSupported(_FSDP, ("local", "torch")),
    },
    "bigscience": _DEEPSPEED,
}
"""Meanings that a program has of its own, by the beginning of its name."""


def meaning_of(name: str, program: str = "") -> Meaning | None:
    """Return the meaning of a flag; None if it is unknown."""
    for beginning, own in MEANINGS_OF.items():
        if program.startswith(beginning) and name in own:
            return own[name]
    if name in MEANINGS:
        return MEANINGS[name]
    return group_of(name) if name in grouped() else None


def group_of(name: str) -> Meaning | None:
    """Return the meaning of all flags that begin like a name, even of one that no program has."""
    return next((found for group, found in _GROUPS.items() if fnmatchcase(name, group)), None)


@cache
def grouped() -> frozenset[str]:
    """Return the flags of all versions that only have a meaning with those that begin like them."""
    return frozenset(table_lines(GROUPED))


def is_listed(name: str) -> bool:
    """Say whether a flag has a meaning of its own, and not only one with all that begin like it."""
    return name in MEANINGS or any(name in own for own in MEANINGS_OF.values())


class Spelled(NamedTuple):
    """A flag's dest."""

    name: str
    given: Any = None  # value of a switch; None for a flag that takes a value


SPELLINGS = {
    "bert_no_binary_head": Spelled("bert_binary_head", given=False),
    "inference_dynamic_batching_prefix_caching": Spelled(
        "inference_dynamic_batching_enable_prefix_caching", given=True
    ),
    "muon_no_split_qkv": Spelled("muon_split_qkv", given=False),
    "no_log_learnig_rate_to_tensorboard": Spelled("log_learning_rate_to_tensorboard", given=False),
    "retro_no_verify_neighbor_count": Spelled("retro_verify_neighbor_count", given=False),
    "vocab": Spelled("vocab_file"),
}
"""Flags without a row in the table of flags, by their names without the leading dashes, with underscores."""


@cache
def _by_spelling() -> Mapping[str, Spelled]:
    """Return the dests of flags that have another name than their dest, as the newest program with them has them."""
    newest = program_of("megatron-lm")
    found: dict[str, Spelled] = {}
    for spelling, flag in (*newest.spelled.items(), *newest.elsewhere.items()):
        found.setdefault(
            spelling.lstrip("-").replace("-", "_").lower(),
            Spelled(flag.name, flag.given if flag.kind == "switch" else None),
        )
    return found | SPELLINGS


def spelled(flag: str, known: Mapping[str, object]) -> Spelled:
    """Return the dest of a flag without dashes, and the value of one that turns something off."""
    if flag in known:
        return Spelled(flag)
    dests = _by_spelling()
    if flag in dests:
        return dests[flag]
    on = flag.removeprefix("no_").removeprefix("disable_")
    switch = dests.get(on, Spelled(on))
    if on == flag or switch.name not in known or switch.given is False:  # the last: off of what is off already
        return Spelled(flag)
    return Spelled(switch.name, given=False)
