"""Meanings of all flags of pretrain_gpt.py's training, in every version of Megatron-LM and both Megatron-DeepSpeeds."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.meaning import Carried, NotSupported
from pretrain.tools.migrate.meanings.megatron.checkpoint_flags import CHECKPOINTS
from pretrain.tools.migrate.meanings.megatron.data_flags import DATA
from pretrain.tools.migrate.meanings.megatron.engine_flags import ENGINE
from pretrain.tools.migrate.meanings.megatron.kernel_flags import COMPUTATION
from pretrain.tools.migrate.meanings.megatron.logging_flags import LOGGING
from pretrain.tools.migrate.meanings.megatron.model_families import FAMILIES
from pretrain.tools.migrate.meanings.megatron.model_flags import MODEL
from pretrain.tools.migrate.meanings.megatron.other_uses import USES
from pretrain.tools.migrate.meanings.megatron.parallel_flags import PARALLEL
from pretrain.tools.migrate.meanings.megatron.precision_flags import PRECISION
from pretrain.tools.migrate.meanings.megatron.training_flags import TRAINING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meanings.meaning import Meaning

TABLES: tuple[dict[str, Meaning], ...] = (
    *(MODEL, DATA, TRAINING, PRECISION, PARALLEL, COMPUTATION, ENGINE, CHECKPOINTS, LOGGING, FAMILIES, USES),
)
"""Tables by subject, which have no flag in common."""

MEANINGS: Mapping[str, Meaning] = MappingProxyType({name: found for table in TABLES for name, found in table.items()})
"""By dest, as argparse has it: "num_layers", "DDP_impl"."""

_SCALE_OF_FILE = "fp16 of DeepSpeed's file with --deepspeed, else the flag"
_DEEPSPEED: Mapping[str, Meaning] = {
    "clip_grad": Carried(
        "optimizer.clip_grad", how="gradient_clipping of DeepSpeed's file with --deepspeed, else the flag"
    ),
    **{
        name: Carried(f"precision.{name}", how=_SCALE_OF_FILE)
        for name in ("loss_scale", "initial_loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale")
    },
}
_FSDP = "replicas have all weights: to split them, engine.name: deepspeed with engine.zero.stage: 3"

MEANINGS_OF: Mapping[str, Mapping[str, Meaning]] = MappingProxyType(
    {
        "megatron-deepspeed": {
            **_DEEPSPEED,
            "DDP_impl": NotSupported(_FSDP, ("local", "torch")),
        },
        "bigscience": _DEEPSPEED,
    }
)
"""Meanings that a program has of its own, by the beginning of its name."""


def meaning_of(name: str, program: str = "") -> Meaning | None:
    """Return the meaning of a flag; None if it is unknown.

    Args:
        name: dest.
        program: name of a program, "megatron-deepspeed-2023"; empty for Megatron-LM's newest.
    """
    for beginning, own in MEANINGS_OF.items():
        if program.startswith(beginning) and name in own:
            return own[name]
    return MEANINGS.get(name)
