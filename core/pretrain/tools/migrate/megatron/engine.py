"""Who steps the optimizer and what is split, which Megatron-DeepSpeed leaves to DeepSpeed; precision; attention."""

# Sources: core_transformer_config_from_args; add_config_arguments in deepspeed/__init__.py; _add_zero_args in
# megatron/arguments.py and get_megatron_optimizer of both forks.

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.recipe.deepspeed.translate import translate
from pretrain.recipe.section import shown
from pretrain.tools.migrate.megatron.model import FLASH
from pretrain.tools.migrate.megatron.parallel import pipeline_stages
from pretrain.tools.migrate.setting import Derived, SourceLine, in_place, taken, unused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.tools.migrate.setting import Function, Settings

_OFFLOAD = "engine.zero.offload_optimizer"
_FILES = ("deepspeed_config", "deepscale_config")
_NAMES = ("deepspeed", "deepscale", *_FILES)
_SWITCHES = (
    *("zero_stage", "zero_contigious_gradients", "zero_reduce_bucket_size", "zero_allgather_bucket_size"),
    "zero_reduce_scatter",
)

WITHOUT = "without --deepspeed the program does not read it (--as-meant takes it as if --deepspeed were given)"
"""Why a DeepSpeed file, and the flags that belong to it, have no effect."""


def engine_name(settings: Settings) -> Derived:
    """Return the engine; a DeepSpeed file without --deepspeed is not read by the program itself."""
    if not is_on(settings):
        return Derived("megatron", (), idle=tuple((name, WITHOUT) for name in (*_FILES, *_SWITCHES)))
    idle = tuple((name, "DeepSpeed reads it from its file") for name in _SWITCHES)
    if uses_deepspeed(settings):
        return Derived("deepspeed", _NAMES, idle=idle)
    kind = "ZeRO-1 is its distributed optimizer" if stage(settings) == 1 else "ZeRO-0 splits nothing"
    return Derived("megatron", _NAMES, kind, idle=idle)


def offload_device(settings: Settings) -> Derived | None:
    """Return nothing of --cpu-optimizer itself: the file decides where the state is."""
    if is_on(settings):
        return unused("cpu_optimizer", "DeepSpeed's file says where the optimizer is")
    change = "the optimizer's state stays on the devices: there is no offload without DeepSpeed"
    return in_place(None, "cpu_optimizer", change) if settings.value("cpu_optimizer") else None


def use_distributed_optimizer(settings: Settings) -> Derived | None:
    """Return whether the optimizer's state is split over the replicas, which under DeepSpeed its file says."""
    name = "use_distributed_optimizer"
    if settings.value(name) and is_on(settings):
        return unused(name, "the stage of ZeRO in DeepSpeed's file decides")
    return taken(settings, name)


def cpu_adam(settings: Settings) -> Derived | None:
    """Return the Adam of the host, where the optimizer's state is there."""
    if settings.value("cpu_torch_adam") and uses_deepspeed(settings):
        return Derived("torch", ("cpu_torch_adam",))
    return unused("cpu_torch_adam", "it is for an optimizer in host memory")


def attention(settings: Settings) -> Derived | None:
    """Return the kind of attention: auto takes flash attention, where the backend has it."""
    flash = tuple(name for name in FLASH if settings.value(name))
    backend = str(settings.value("attention_backend", "auto")).rpartition(".")[2]  # a log has AttnBackend.auto
    if settings.value("use_triangle_attn"):
        return Derived("triangle", ("use_triangle_attn",))
    if flash:
        return Derived("auto", flash)
    kinds = {"flash": "flash", "unfused": "softmax", "local": "softmax"}
    return Derived(kinds.get(backend, "auto"), ("attention_backend",))


def is_on(settings: Settings) -> bool:
    """Say whether DeepSpeed trains: with --deepspeed alone, unless the file is to count as it was meant."""
    switched = settings.first_on("deepspeed", "deepscale")
    return bool(switched) or (settings.as_meant and settings.deepspeed is not None)


def stage(settings: Settings) -> int:
    """Return the stage of ZeRO in the file; 0 without one."""
    return next((int(value) for value in _stated(settings, ("engine.zero.stage",), (0, 1, 2, 3))), 0)


def is_offloaded(settings: Settings) -> bool:
    """Say whether the file puts state elsewhere than on the device."""
    keys = (f"{_OFFLOAD}.device", "engine.zero.offload_param.device")
    return any(value != "none" for value in _stated(settings, keys, ("none", "cpu", "nvme")))


def uses_deepspeed(settings: Settings) -> bool:
    """Say whether the recipe's engine is DeepSpeed: ZeRO without pipeline stages, which belong to megatron's."""
    if not is_on(settings):
        return False
    stages = pipeline_stages(settings)
    if stages > 1 and (stage(settings) > 1 or is_offloaded(settings)):
        file = settings.deepspeed
        place = "" if file is None else f"{file.place('zero_optimization')}: "
        msg = (
            f"{place}ZeRO-2, ZeRO-3 and offload do not work with {stages} pipeline stages, in DeepSpeed either.\n"
            "Change one of the two."
        )
        raise MigrateError(msg)
    return stages == 1 and (stage(settings) > 0 or is_offloaded(settings))


def place_in(file: JsonFile, json_path: str) -> SourceLine:
    """Return the line of a key of a DeepSpeed file."""
    source, _, line = file.places.get(json_path, file.name).rpartition(":")
    return SourceLine(source, int(line)) if line.isdigit() else SourceLine(file.name)


def _stated(settings: Settings, keys: Collection[str], allowed: Collection[Any]) -> Iterator[Any]:
    """Yield the values that the file gives some keys of the recipe."""
    file = settings.deepspeed
    for given in [] if file is None else translate(file).given:
        if file is None or given.path not in keys:
            continue
        if isinstance(given.value, bool) or not isinstance(given.value, int | str) or given.value not in allowed:
            refused = f"{shown(given.value)} is not one of {', '.join(map(str, allowed))}"
            msg = f"{file.place(given.json_path)}: {refused}.\nDeepSpeed would not start with it: correct it."
            raise MigrateError(msg)
        yield given.value


def _dtype(settings: Settings) -> Derived:
    name = settings.first_on("fp16", "bf16")
    return Derived(name, (name,)) if name else Derived("fp32", ("fp16", "bf16"))


def _loss_scale(settings: Settings) -> Derived | None:
    given = settings.value("loss_scale")
    return Derived(given, ("loss_scale",)) if given and _dtype(settings).value == "fp16" else None


def grad_reduce_in_fp32(settings: Settings) -> Derived | None:
    """Return whether gradients are summed in fp32, as those of bf16 are there unless a flag says otherwise."""
    kind = _dtype(settings).value
    names = ("accumulate_allreduce_grads_in_fp32", "fp32_allreduce")
    name = settings.first_on(*names) or names[0]
    if kind == "fp16":
        return Derived(bool(settings.value(name)), (name,))
    if kind == "bf16" and settings.value("grad_reduce_in_bf16"):
        return Derived(False, ("grad_reduce_in_bf16",))
    return unused(name, "gradients are always summed in fp32")


def _of_dynamic_scale(settings: Settings, name: str) -> Derived | None:
    given = settings.value(name)
    if given is None or _dtype(settings).value != "fp16":
        return None
    return unused(name, "the loss scale is fixed") if settings.value("loss_scale") else Derived(given, (name,))


FUNCTIONS: Mapping[str, Function] = {
    "parallel.use_distributed_optimizer": use_distributed_optimizer,
    "engine.name": engine_name,
    "engine.deepspeed_config": lambda _: None,  # the file gives both, and engine_name says so of the flags
    "engine.zero.stage": lambda _: None,
    "engine.zero.offload_param.device": lambda settings: (
        unused("remote_device", "DeepSpeed's file says where the weights are")
        if settings.value("remote_device")
        else None
    ),
    f"{_OFFLOAD}.cpu_adam": cpu_adam,
    "kernels.attention": attention,
    f"{_OFFLOAD}.device": offload_device,
    "precision.dtype": _dtype,
    "precision.loss_scale": _loss_scale,
    "precision.initial_loss_scale": partial(_of_dynamic_scale, name="initial_loss_scale"),
    "precision.loss_scale_window": partial(_of_dynamic_scale, name="loss_scale_window"),
    "precision.hysteresis": partial(_of_dynamic_scale, name="hysteresis"),
    "precision.min_loss_scale": lambda settings: _of_dynamic_scale(
        settings,
        settings.first("min_scale") or "min_loss_scale",  # --min-scale in the versions of 2019
    ),
    "precision.grad_reduce_in_fp32": grad_reduce_in_fp32,
}
