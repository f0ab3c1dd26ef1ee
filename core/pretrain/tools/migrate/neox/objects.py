"""Objects that GPT-NeoX hands to DeepSpeed, key by key (NeoXArgsDeepspeedConfig): "zero_optimization.stage".

Values that match fixed behaviour are those of a DeepSpeed file in a recipe.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.recipe.deepspeed.key_tables import BLOCKS, INSTEAD, SAME, SETTLED, SWITCHED
from pretrain.tools.migrate.meaning import Ignored, Mapped, NoEffect, NotSupported, alike
from pretrain.tools.migrate.setting import Setting

if TYPE_CHECKING:
    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Settings


_ZERO = "zero_optimization"
_STAGES = "at stages 2 and 3, or with offload; at stages 0 and 1 megatron-core's engine has its own"
_ONEBIT = Ignored("only one-bit Adam reads it")
_OFFLOAD = "the device of a section, in an older spelling"
_SUMS = "data_types.grad_accum_dtype, communication_data_type and fp32_allreduce decide together"
_FP16 = "with fp16 and a dynamic loss scale"
_REMOVED = {
    "amp": "precision.dtype sets the dtype of everything",
    "compression_training": "weights are not compressed",
    "curriculum_learning": "every sequence has model.seq_length tokens",
    "elasticity": "the number of devices may change at a resume, the batch does not",
    "sparse_attention": "attention is not sparse",
}
_CHANGES = {
    "prescale_gradients": "gradients are divided after their sum",
    "gradient_predivide_factor": "gradients are divided after their sum",
    "dump_state": "the recipe and environment.json of the run directory are what is written",
    "fp16.fp16_master_weights_and_grads": "main weights and gradients are fp32",
    "optimizer.params.bias_correction": "Adam's moments are corrected for their start",
    "optimizer.params.amsgrad": "Adam is not AMSGrad",
}
_BY_OBJECT = {
    name: f"a recipe has no equivalent of {name}{f': {instead}' if instead else ''}"
    for name, instead in {**SWITCHED, **BLOCKS, **_REMOVED}.items()
    if name not in {"scheduler", "sequence_parallel_size", "compile", "timers"}
}


def _change(path: str) -> str:
    return _CHANGES.get(path) or INSTEAD.get(path) or f"it is always {json.dumps(SETTLED[path])} here"


OTHER_MODEL = frozenset(("progressive_layer_drop", "sparse_attention"))
"""Objects with which the model computes something else."""


OBJECTS: dict[str, Meaning] = {
    **{
        path: NotSupported(_change(path), unless=(value,))
        for path, value in SETTLED.items()
        if path != "wall_clock_breakdown" and not path.startswith("activation_checkpointing.")
    },
    **{path: Mapped(key, how=_STAGES) for path, key in SAME.items() if path.startswith(f"{_ZERO}.")},
    **{
        f"{name}.enabled": NotSupported(change, (False,), other_model=name in OTHER_MODEL)
        for name, change in _BY_OBJECT.items()
    },
    **{
        name: NotSupported(change, (None, {}), other_model=name in OTHER_MODEL)
        for name, change in _BY_OBJECT.items()
        if name not in SWITCHED
    },
    **{name: NoEffect(f"it belongs to {name}.enabled") for name in SWITCHED},
    **{name: NoEffect(f"it belongs to {name}.enabled") for name in ("amp", "curriculum_learning", "elasticity")},
    f"{_ZERO}.allgather_partitions": NoEffect(
        "updated weights are always gathered; DeepSpeed no longer reads it either"
    ),
    f"{_ZERO}.cpu_offload": Mapped("engine.zero.offload_optimizer.device", how=_OFFLOAD),
    f"{_ZERO}.cpu_offload_param": Mapped("engine.zero.offload_param.device", how=_OFFLOAD),
    f"{_ZERO}.cpu_offload_params": Mapped("engine.zero.offload_param.device", how=_OFFLOAD),
    f"{_ZERO}.cpu_offload_use_pin_memory": Mapped("engine.zero.offload_optimizer.pin_memory", how=_OFFLOAD),
    f"{_ZERO}.overlap_comm": Mapped(
        "engine.zero.overlap_comm", how="parallel.overlap_grad_reduce at stage 1 without offload"
    ),
    f"{_ZERO}.reduce_bucket_size": Mapped(
        "engine.zero.reduce_bucket_size", how="parallel.ddp_bucket_size at stage 1 without offload"
    ),
    f"{_ZERO}.stage": Mapped("engine.zero.stage", how="stage 1 without offload is parallel.use_distributed_optimizer"),
    "zero_allow_untested_optimizer": NoEffect("Adam is one that DeepSpeed tests"),
    "fp16": Mapped("precision.dtype", how="its keys have meanings of their own"),
    "fp16.enabled": Mapped("precision.dtype", values={True: "fp16"}, how="with precision and bf16.enabled"),
    "fp16.type": Mapped("precision.dtype", values={"bfloat16": "bf16"}, how="of GPT-NeoX until May 2023"),
    "fp16.fp16": Ignored("fp16.enabled is what DeepSpeed reads"),
    "fp16.loss_scale": Mapped("precision.loss_scale", how="0 is a dynamic one"),
    "fp16.initial_scale_power": Mapped("precision.initial_loss_scale", how="2 to its power"),
    "fp16.loss_scale_window": Mapped("precision.loss_scale_window", how=_FP16),
    "fp16.hysteresis": Mapped("precision.hysteresis", how=_FP16),
    "fp16.min_loss_scale": Mapped("precision.min_loss_scale", how=_FP16),
    "bf16": Mapped("precision.dtype", how="its keys have meanings of their own"),
    **alike(
        Ignored("DeepSpeed scales the loss of fp16 alone"),
        """bf16.bf16 bf16.loss_scale bf16.loss_scale_window bf16.initial_scale_power bf16.hysteresis
        bf16.min_loss_scale""",
    ),
    "bf16.enabled": Mapped("precision.dtype", values={True: "bf16"}, how="with precision and fp16.enabled"),
    "data_types": Mapped("precision.grad_reduce_in_fp32", how="its keys have meanings of their own"),
    "data_types.grad_accum_dtype": Mapped("precision.grad_reduce_in_fp32", how=_SUMS),
    "optimizer.type": Mapped("optimizer.name", how="Adam is AdamW unless adam_w_mode is false"),
    "optimizer.params": Mapped("optimizer.lr", how="its keys have meanings of their own"),
    "optimizer.params.lr": Mapped("optimizer.lr"),
    "optimizer.params.betas": Mapped("optimizer.adam_beta1", how="the second is optimizer.adam_beta2"),
    "optimizer.params.eps": Mapped("optimizer.adam_eps"),
    "optimizer.params.adam_w_mode": Mapped("optimizer.name", values={True: "adamw", False: "adam"}, how="of Adam"),
    "optimizer.params.weight_decay": Mapped(
        "optimizer.weight_decay", how="GPT-NeoX stops where an Adam has both it and weight_decay"
    ),
    "optimizer.params.freeze_step": _ONEBIT,
    "optimizer.params.momentum": _ONEBIT,
    "optimizer.params.cuda_aware": _ONEBIT,
    "activation_checkpointing": Ignored("GPT-NeoX takes partition_activations and the like instead"),
    "sparse_gradients": NotSupported("gradients of the embedding are dense", unless=(False,)),
    "autotuning_run": NotSupported("pretrain plan compares layouts; nothing is tuned", unless=(None,)),
    "deepspeed_extra_args": NoEffect("its keys count as if they stood at the top"),
}


EXTRA = "deepspeed_extra_args"
"""Object whose keys GPT-NeoX puts beside the others (`get_extra_deepspeed_args`), so that their paths lack it."""

_LARGEST = 10**15
"""Whole numbers that are exact as floating-point numbers too, with which parts of them are worked out."""


def flat(stated: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return settings with those inside objects by their paths, in the place of the objects.

    Keys of deepspeed_extra_args count as if they stood beside the others (`NeoXArgs.get_extra_deepspeed_args`).

    Args:
        stated: by name, as `read_neox` gives them.
    """
    found: dict[str, Setting] = {}
    for name, setting in _beside(stated).items():
        if isinstance(setting.value, Mapping) and setting.value:
            found |= flat(_inside(name, setting))
        else:
            found[name] = setting
    return found


def _beside(stated: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return settings with the keys of deepspeed_extra_args under their own names."""
    around = stated.get(EXTRA)
    if around is None or not isinstance(around.value, Mapping) or not around.value:
        return dict(stated)
    extra = {path.removeprefix(f"{EXTRA}."): setting for path, setting in _inside(EXTRA, around).items()}
    for name, setting in extra.items():
        other = stated.get(name)
        if other is not None and other.value is not None:
            msg = f"{setting.place}: {setting.written} and {other.place}: {other.written} are one setting"
            msg += " in two places.\nRemove one of them."
            raise MigrateError(msg)
    others = {name: setting for name, setting in stated.items() if name != EXTRA}
    return others | {name: replace(setting, name=name) for name, setting in extra.items()}


def _inside(name: str, around: Setting) -> dict[str, Setting]:
    places = getattr(around.value, "places", {})
    return {
        f"{name}.{key}": Setting(f"{name}.{key}", value, f"{around.written}.{key}", places.get(key, around.place))
        for key, value in around.value.items()
    }


def inner(settings: Settings, path: str, otherwise: Any = None) -> Any:
    """Return the value of a setting.

    Args:
        settings: those of a training, flat.
        path: a name, or the path of a key of an object.
        otherwise: for one that is null or absent.
    """
    return settings.value(path, otherwise)


def stated(settings: Settings, *paths: str) -> tuple[str, ...]:
    """Return those of the paths that the source gives a value."""
    return tuple(path for path in paths if path in settings.stated)


def whole(settings: Settings, path: str, otherwise: int) -> int:
    """Return a setting that has to be a whole number."""
    value = inner(settings, path, otherwise)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise refused(settings, path, f"{value!r} is not a whole number", "Give the number that the training has")
    if abs(value) > _LARGEST:
        why = f"a number of {len(str(abs(value)))} digits is out of range"
        raise refused(settings, path, why, "Give the number that the training has")
    return value


def number(settings: Settings, path: str, otherwise: float) -> float:
    """Return a setting that has to be a number."""
    value = inner(settings, path, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise refused(settings, path, f"{value!r} is not a number", "Give the number that the training has")
    return value


def refused(settings: Settings, path: str, why: str, todo: str) -> MigrateError:
    """Return an error that names the line of a setting."""
    setting = settings.stated.get(path)
    place = f"{setting.place}: " if setting is not None and setting.place is not None else ""
    return MigrateError(f"{place}{path}: {why}.\n{todo}.")
