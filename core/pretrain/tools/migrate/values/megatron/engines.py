"""Keys that depend on who steps the optimizer: Megatron, or DeepSpeed under Megatron-DeepSpeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.values.megatron.deepspeed import deepspeed_engine
from pretrain.tools.migrate.values.megatron.shape import FLASH
from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

_FILES = ("deepspeed_config", "deepscale_config")
_NAMES = ("deepspeed", "deepscale", *_FILES)
_BY_FILE = "DeepSpeed's file says where the weights are"
_SWITCHES = (
    "zero_stage",
    "zero_contigious_gradients",
    "zero_reduce_bucket_size",
    "zero_allgather_bucket_size",
    "zero_reduce_scatter",
)


def engine_name(settings: Settings) -> Worked:
    """Return the engine; a DeepSpeed file without --deepspeed is not read by the program itself."""
    if deepspeed_engine.is_on(settings):
        return _of_deepspeed(settings)
    return Worked("megatron", (), idle=tuple((name, deepspeed_engine.WITHOUT) for name in (*_FILES, *_SWITCHES)))


def _of_deepspeed(settings: Settings) -> Worked:
    why = "DeepSpeed takes it from its file"
    idle = tuple((name, why) for name in _SWITCHES)
    if deepspeed_engine.uses_deepspeed(settings):
        return Worked("deepspeed", _NAMES, idle=idle)
    kind = "ZeRO-1 is its distributed optimizer" if deepspeed_engine.stage(settings) == 1 else "ZeRO-0 splits nothing"
    return Worked("megatron", _NAMES, kind, idle=idle)


def offload_device(settings: Settings) -> Worked | None:
    """Return nothing of --cpu-optimizer itself: the file decides where the state is."""
    why = "DeepSpeed's file says where the optimizer is"
    change = "the optimizer's state stays on the devices: there is no offload without DeepSpeed"
    if deepspeed_engine.is_on(settings):
        return Worked(None, (), idle=(("cpu_optimizer", why),))
    return Worked(None, (), lost=(("cpu_optimizer", change),)) if settings.value("cpu_optimizer") else None


def use_distributed_optimizer(settings: Settings) -> Worked | None:
    """Return whether the optimizer's state is split over the replicas, which under DeepSpeed its file says."""
    name = "use_distributed_optimizer"
    given = settings.value(name)
    if given and deepspeed_engine.is_on(settings):
        return Worked(None, (), idle=((name, "the stage of ZeRO in DeepSpeed's file decides"),))
    return None if given is None else Worked(given, (name,))


def not_by_flag(settings: Settings) -> Worked | None:  # noqa: ARG001  a function's signature
    """Return nothing: the file of DeepSpeed says it, and engine_name says so of the flag."""
    return None


def offload_param_device(settings: Settings) -> Worked | None:
    """Return nothing of --remote-device: DeepSpeed's file decides where the weights are."""
    return Worked(None, (), idle=(("remote_device", _BY_FILE),)) if settings.value("remote_device") else None


def cpu_adam(settings: Settings) -> Worked | None:
    """Return the Adam of the host, where the optimizer's state is there."""
    if settings.value("cpu_torch_adam") and deepspeed_engine.uses_deepspeed(settings):
        return Worked("torch", ("cpu_torch_adam",))
    why = "only a state in host memory has such an Adam"
    return Worked(None, (), idle=(("cpu_torch_adam", why),))


def attention(settings: Settings) -> Worked | None:
    """Return the kind of attention: auto takes flash attention, where the backend has it."""
    flash = tuple(name for name in FLASH if settings.value(name))
    backend = str(settings.value("attention_backend", "auto")).rpartition(".")[2]  # a log has AttnBackend.auto
    if settings.value("use_triangle_attn"):
        return Worked("triangle", ("use_triangle_attn",))
    if flash:
        return Worked("auto", flash)
    kinds = {"flash": "flash", "unfused": "softmax", "local": "softmax"}
    return Worked(kinds.get(backend, "auto"), ("attention_backend",))
