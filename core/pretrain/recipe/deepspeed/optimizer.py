"""The optimizer object: which Adam it names, and its betas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.recipe.deepspeed.translation import Given, written
from pretrain.recipe.shown import shown

if TYPE_CHECKING:
    from pretrain.recipe.deepspeed.translation import Translation

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
        translation.given.append(Given(json_path=path, path="optimizer.weight_decay", value=0.0, kind="by default"))


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
