"""zero_optimization: its old form, and the keys that DeepSpeed has renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretrain.recipe.deepspeed.translation import Translation

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
