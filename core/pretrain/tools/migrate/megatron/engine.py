"""Flags of Megatron-DeepSpeed that concern DeepSpeed: who steps the optimizer, and what is split.

add_config_arguments in deepspeed/__init__.py; _add_zero_args in megatron/arguments.py and get_megatron_optimizer of
both forks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.recipe.deepspeed.translate import translate
from pretrain.recipe.section import shown
from pretrain.tools.migrate.meaning import Ignored, Mapped, NoEffect, NotSupported, Replaced, alike
from pretrain.tools.migrate.megatron.model import FLASH
from pretrain.tools.migrate.megatron.stages import pipeline_stages
from pretrain.tools.migrate.setting import Derived, SourceLine, in_place, unused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.recipe.deepspeed.translation import Given
    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function, Settings


_ENGINE = "deepspeed where its file splits or offloads something and there is one stage; else megatron does the same"
_FILE = "its keys become keys of the recipe"
_OF_FILE = "DeepSpeed takes it from its file, and nothing reads the flag"
_ULYSSES = "one sequence is not split over ranks by its heads: the memory of its activations grows"

ENGINE: dict[str, Meaning] = {
    "deepspeed": Mapped("engine.name", {True: "deepspeed"}, _ENGINE),
    "deepscale": Mapped("engine.name", {True: "deepspeed"}, _ENGINE),
    "deepspeed_config": Mapped("engine.deepspeed_config", how=_FILE),
    "deepscale_config": Mapped("engine.deepspeed_config", how=_FILE),
    "deepspeed_mpi": Replaced("under mpirun each rank calls pretrain run, which finds out its rank by itself"),
    "zero_stage": Mapped(
        "engine.zero.stage",
        how="the stage of DeepSpeed's file, which has to be the same",
        note="with engine.name=deepspeed",
    ),
    "remote_device": Mapped("engine.zero.offload_param.device", how="the device of offload_param in DeepSpeed's file"),
    "cpu_optimizer": Mapped(
        "engine.zero.offload_optimizer.device", {True: "cpu"}, "the device of offload_optimizer in DeepSpeed's file"
    ),
    "cpu_torch_adam": Mapped("engine.zero.offload_optimizer.cpu_adam", {True: "torch"}, "with cpu_optimizer alone"),
    "no_pipeline_parallel": NoEffect("without pipeline stages there is nothing to switch off"),
    **alike(
        Ignored(_OF_FILE),
        """zero_reduce_scatter zero_contigious_gradients zero_reduce_bucket_size zero_allgather_bucket_size
        use_pin_memory""",
    ),
    "ds_sequence_parallel_size": NotSupported(_ULYSSES, (1,)),
    "force_ds_sequence_parallel": NotSupported(_ULYSSES),
    **alike(
        Ignored("it belongs to ds_sequence_parallel_size"),
        "ds_sequence_parallel_fpdt ds_sequence_parallel_fpdt_chunk_size ds_sequence_parallel_fpdt_offloading",
    ),
    "use_dataset_only": NotSupported("the whole training is run, not only its token files given to another program"),
}
"""By dest."""


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


def engine_name(settings: Settings) -> Derived:
    """Return the engine; a DeepSpeed file without --deepspeed is not read by the program itself."""
    if is_on(settings):
        return _of_deepspeed(settings)
    return Derived("megatron", (), idle=tuple((name, WITHOUT) for name in (*_FILES, *_SWITCHES)))


def _of_deepspeed(settings: Settings) -> Derived:
    why = "DeepSpeed takes it from its file"
    idle = tuple((name, why) for name in _SWITCHES)
    if uses_deepspeed(settings):
        return Derived("deepspeed", _NAMES, idle=idle)
    kind = "ZeRO-1 is its distributed optimizer" if stage(settings) == 1 else "ZeRO-0 splits nothing"
    return Derived("megatron", _NAMES, kind, idle=idle)


def offload_device(settings: Settings) -> Derived | None:
    """Return nothing of --cpu-optimizer itself: the file decides where the state is."""
    why = "DeepSpeed's file says where the optimizer is"
    change = "the optimizer's state stays on the devices: there is no offload without DeepSpeed"
    if is_on(settings):
        return unused("cpu_optimizer", why)
    return in_place(None, "cpu_optimizer", change) if settings.value("cpu_optimizer") else None


def use_distributed_optimizer(settings: Settings) -> Derived | None:
    """Return whether the optimizer's state is split over the replicas, which under DeepSpeed its file says."""
    name = "use_distributed_optimizer"
    given = settings.value(name)
    if given and is_on(settings):
        return unused(name, "the stage of ZeRO in DeepSpeed's file decides")
    return None if given is None else Derived(given, (name,))


def not_by_flag(settings: Settings) -> Derived | None:  # noqa: ARG001  a function's signature
    """Return nothing: the file of DeepSpeed says it, and engine_name says so of the flag."""
    return None


def offload_param_device(settings: Settings) -> Derived | None:
    """Return nothing of --remote-device: DeepSpeed's file decides where the weights are."""
    return unused("remote_device", _BY_FILE) if settings.value("remote_device") else None


def cpu_adam(settings: Settings) -> Derived | None:
    """Return the Adam of the host, where the optimizer's state is there."""
    if settings.value("cpu_torch_adam") and uses_deepspeed(settings):
        return Derived("torch", ("cpu_torch_adam",))
    why = "only a state in host memory has such an Adam"
    return unused("cpu_torch_adam", why)


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


WITHOUT = "without --deepspeed the program does not read it (--as-meant takes it as if --deepspeed were given)"
"""Reason why a file, and the flags that belong to it, have no effect."""

_STAGE = "engine.zero.stage"
_STAGES = (0, 1, 2, 3)
_OFFLOADED = ("engine.zero.offload_optimizer.device", "engine.zero.offload_param.device")
_DEVICES = ("none", "cpu", "nvme")


def is_on(settings: Settings) -> bool:
    """Say whether DeepSpeed trains: with --deepspeed alone, unless the file is to count as it was meant."""
    switched = settings.value("deepspeed") or settings.value("deepscale")
    return bool(switched) or (settings.as_meant and settings.deepspeed is not None)


def stage(settings: Settings) -> int:
    """Return the stage of ZeRO in the file; 0 without one."""
    return next((int(value) for value in _stated(settings, (_STAGE,), _STAGES)), 0)


def is_offloaded(settings: Settings) -> bool:
    """Say whether the file puts state elsewhere than on the device."""
    return any(value != "none" for value in _stated(settings, _OFFLOADED, _DEVICES))


def uses_deepspeed(settings: Settings) -> bool:
    """Say whether the recipe's engine is DeepSpeed: ZeRO without pipeline stages, which belong to megatron's."""
    if not is_on(settings):
        return False
    stages = pipeline_stages(settings)
    if stages > 1 and (stage(settings) > 1 or is_offloaded(settings)):
        file = settings.deepspeed
        place = "" if file is None else f"{file.place('zero_optimization')}: "
        msg = (
            f"{place}ZeRO-2, ZeRO-3 and offload do not go with {stages} pipeline stages, in DeepSpeed neither.\n"
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
        if given.path in keys:
            if isinstance(given.value, bool) or not isinstance(given.value, int | str) or given.value not in allowed:
                raise MigrateError(_refused(file, given, allowed))
            yield given.value


def _refused(file: JsonFile | None, given: Given, allowed: Collection[Any]) -> str:
    place = "" if file is None else f"{file.place(given.json_path)}: "
    return (
        f"{place}{shown(given.value)} is not one of {', '.join(map(str, allowed))}.\n"
        "DeepSpeed would not start with it: correct it."
    )


FUNCTIONS: Mapping[str, Function] = {
    "parallel.use_distributed_optimizer": use_distributed_optimizer,
    "engine.name": engine_name,
    "engine.deepspeed_config": not_by_flag,
    "engine.zero.stage": not_by_flag,
    "engine.zero.offload_param.device": offload_param_device,
    "engine.zero.offload_optimizer.cpu_adam": cpu_adam,
    "kernels.attention": attention,
    "engine.zero.offload_optimizer.device": offload_device,
}
"""By key of the recipe."""
