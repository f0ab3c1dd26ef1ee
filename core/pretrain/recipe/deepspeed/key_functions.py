"""Keys of a DeepSpeed file whose translation needs a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.recipe.deepspeed.json_file import written
from pretrain.recipe.recipe import AccumulationSteps
from pretrain.recipe.section import shown

if TYPE_CHECKING:
    from pretrain.recipe.deepspeed.translation import Translation


def accumulation_steps(translation: Translation, path: str, value: Any) -> None:
    """gradient_accumulation_steps: checked as soon as the number of ranks is known (recipe/layout.py)."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        translation.refuse(path, f"{shown(value)} is not a whole number of 1 or more.")
        return
    translation.accumulation_steps = AccumulationSteps(translation.file.place(path), value)


def steps_per_print(translation: Translation, path: str, value: Any) -> None:
    """steps_per_print: DeepSpeed's own log is off, and the recipe has logging.log_interval."""
    translation.notice(path, f"{shown(value)} is not used; logging.log_interval says how often metrics are shown.")


_NAMES = {
    name: dtype
    for dtype, names in {
        "fp32": ("torch.float32", "fp32", "float32", "float"),
        "fp16": ("torch.float16", "fp16", "float16", "half"),
        "bf16": ("torch.bfloat16", "bf16", "bfloat16"),
    }.items()
    for name in names
}
"""DtypeEnum of deepspeed/runtime/config.py."""

_SUMS = ("data_types.grad_accum_dtype", "communication_data_type")
_MOST = 1000
"""2 ** 1000 is near the largest number."""


def enabled(translation: Translation, path: str, value: Any) -> None:
    """fp16.enabled, bf16.enabled and the old bfloat16.enabled."""
    dtype = "fp16" if path == "fp16.enabled" else "bf16"
    if not translation.is_switch(path, value):
        return
    if path == "bfloat16.enabled":
        translation.notice(path, "the old name of bf16.enabled; it was read as bf16.enabled.")
    translation.give(path, "precision.dtype", dtype, "is" if value else "is not")
    if not value:
        translation.settle(path, value)
    elif dtype == "bf16" and not any(translation.file.has(path) for path in _SUMS):
        translation.give(path, "precision.grad_reduce_in_fp32", value=False, kind="by default")


def loss_scale(translation: Translation, path: str, value: Any) -> None:
    """fp16.loss_scale: 0 is a dynamic one."""
    dynamic = not isinstance(value, bool) and value == 0
    translation.give(path, "precision.loss_scale", None if dynamic else value)


def initial_scale_power(translation: Translation, path: str, value: Any) -> None:
    """fp16.initial_scale_power: an exponent of 2."""
    whole = not isinstance(value, bool) and isinstance(value, int | float) and value == value // 1
    if whole and abs(value) <= _MOST:
        translation.give(path, "precision.initial_loss_scale", 2.0**value)
    else:
        translation.refuse(path, f"{shown(value)} is not a whole number in range, the exponent of 2.")


def initial_scale_of_deepspeed(translation: Translation) -> None:
    """Take DeepSpeed's 2 ** 16 where a dynamic scale is given without its start; a recipe's default is 2 ** 32."""
    file = translation.file
    if file.values.get("fp16.enabled") is True and not file.has("fp16.initial_scale_power"):
        unless = ("precision.loss_scale",)
        translation.give("fp16.enabled", "precision.initial_loss_scale", 2.0**16, "by default", unless)


def sum_of_gradients(translation: Translation, path: str, value: Any) -> None:
    """data_types.grad_accum_dtype and communication_data_type: fp32, or the dtype of the weights."""
    dtype = _dtype(translation, path, value)
    if dtype is None:
        return
    translation.give(path, "precision.grad_reduce_in_fp32", dtype == "fp32")
    if dtype != "fp32":
        translation.give(path, "precision.dtype", dtype)


def dtype_of_weights(translation: Translation, path: str, value: Any) -> None:
    """data_types.param_dtype."""
    dtype = _dtype(translation, path, value)
    if dtype is not None:
        translation.give(path, "precision.dtype", dtype)


def _dtype(translation: Translation, path: str, value: Any) -> str | None:
    dtype = _NAMES.get(value) if isinstance(value, str) else None
    if dtype is None:
        translation.refuse(path, f"{shown(value)} is not one of fp32, bf16 or fp16.")
    return dtype


_MODE = "optimizer.params.adam_w_mode"
_TORCH = "optimizer.params.torch_adam"


def name(translation: Translation, path: str, value: Any) -> None:
    """optimizer.type: "Adam" means AdamW, unless adam_w_mode is false (_configure_basic_optimizer)."""
    kind = value.lower() if isinstance(value, str) else None
    if kind not in {"adam", "adamw"}:
        translation.refuse(path, f"{shown(value)} is not one of Adam or AdamW.")
        return
    coupled = kind == "adam" and translation.file.values.get(_MODE) is False
    if kind == "adam" and not coupled:
        text = f"DeepSpeed's {value} is AdamW unless adam_w_mode is false; it was read as optimizer.name: adamw."
        translation.notice(path, text)
    translation.give(path, "optimizer.name", "adam" if coupled else "adamw")
    if coupled or translation.file.values.get(_TORCH) is not True:  # torch.optim.AdamW alone has one, the recipe's
        translation.give(path, "optimizer.weight_decay", 0.0, "by default")


def adam_w_mode(translation: Translation, path: str, value: Any) -> None:
    """optimizer.params.adam_w_mode: checked here for AdamW; `name` reads it for Adam."""
    kind = translation.file.values.get("optimizer.type")
    if translation.is_switch(path, value) and isinstance(kind, str) and kind.lower() == "adamw":
        if value:
            translation.settle(path, value)
        else:
            translation.refuse(path, f"false has no effect with optimizer.type {kind}; give Adam instead.")


def betas(translation: Translation, path: str, value: Any) -> None:
    """optimizer.params.betas."""
    if not isinstance(value, list) or len(value) != 2:
        translation.refuse(path, f"{shown(value)} is not a list of two numbers.")
        return
    for number, key in zip(value, ("adam_beta1", "adam_beta2"), strict=True):
        translation.give(path, f"optimizer.{key}", number)


def torch_adam(translation: Translation, path: str, value: Any) -> None:
    """optimizer.params.torch_adam: with offload, the Adam of the host."""
    if not translation.is_switch(path, value):
        return
    if value:
        translation.give(path, "engine.zero.offload_optimizer.cpu_adam", "torch")
    else:
        translation.settle(path, value)


def params_without_a_type(translation: Translation) -> bool:
    """Refuse params that DeepSpeed would not read."""
    values = translation.file.values
    lost = [path for path in values if path.startswith("optimizer.params.") and translation.file.has(path)]
    if translation.file.has("optimizer.type") or not lost:
        return False
    shown_keys = ", ".join(f"{path.rpartition('.')[2]}: {written(values[path])}" for path in lost)
    translation.refuse("optimizer", f"without optimizer.type DeepSpeed reads no params ({shown_keys}). Give a type.")
    return True


_ZERO = "zero_optimization"

_SECTIONS = {
    "cpu_offload": "offload_optimizer",
    "cpu_offload_param": "offload_param",
    "cpu_offload_params": "offload_param",
}


def as_switch(translation: Translation, path: str, value: Any) -> None:
    """zero_optimization: true, which was stage 1 (`read_zero_config_deprecated`)."""
    if translation.is_switch(path, value):
        translation.notice(path, f"the old form; it was read as engine.zero.stage: {int(value)}.")
        translation.give(path, "engine.zero.stage", int(value))


def cpu_offload(translation: Translation, path: str, value: Any) -> None:
    """cpu_offload and its like: the device of a section."""
    if not translation.is_switch(path, value):
        return
    device = f"engine.zero.{_SECTIONS[path.rpartition('.')[2]]}.device"
    offloaded = "cpu" if value else "none"
    translation.notice(path, f"deprecated in DeepSpeed; it was read as {device}: {offloaded}.")
    translation.give(path, device, offloaded)


def pin_memory(translation: Translation, path: str, value: Any) -> None:
    """cpu_offload_use_pin_memory: of everything that the file offloads. DeepSpeed 0.19 warns and ignores it."""
    if not translation.is_switch(path, value):
        return
    sections = [section for section in dict.fromkeys(_SECTIONS.values()) if _is_offloaded(translation, section)]
    if not sections:
        translation.notice(path, "left out: nothing is offloaded.")
        return
    keys = [f"engine.zero.{section}.pin_memory" for section in sections]
    translation.notice(path, f"deprecated in DeepSpeed; it was read as {' and '.join(keys)}.")
    for key in keys:
        translation.give(path, key, value)


def _is_offloaded(translation: Translation, section: str) -> bool:
    values = translation.file.values
    old = any(values.get(f"{_ZERO}.{key}") is True for key, name in _SECTIONS.items() if name == section)
    return old or values.get(f"{_ZERO}.{section}.device") in ("cpu", "nvme")
