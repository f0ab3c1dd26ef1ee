"""Keys of DeepSpeed that are keys of a recipe under another name, with the same meaning and unit."""

from __future__ import annotations

import typing
from typing import Any

from pretrain.recipe.keys import inner_section, walk
from pretrain.recipe.recipe import Recipe
from pretrain.recipe.sections.engine.zero import ZeroSection

_ZERO = "zero_optimization"
_OURS = f"{_ZERO}.offload_optimizer.cpu_adam"

_WITHOUT_PREFIX = (
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
)
"""DeepSpeed takes these with and without stage3_ (populate_by_name in config_utils.py)."""

SAME = {
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_clipping": "optimizer.clip_grad",
    "fp16.loss_scale_window": "precision.loss_scale_window",
    "fp16.hysteresis": "precision.hysteresis",
    "fp16.min_loss_scale": "precision.min_loss_scale",
    "optimizer.params.lr": "optimizer.lr",
    "optimizer.params.eps": "optimizer.adam_eps",
    "optimizer.params.weight_decay": "optimizer.weight_decay",
    "activation_checkpointing.partition_activations": "recompute.distribute_saved_activations",
    **{
        path: path.replace(_ZERO, "engine.zero", 1)
        for path, field in walk(ZeroSection, f"{_ZERO}.")
        if inner_section(field) is None and path != _OURS
    },
    **{f"{_ZERO}.{key}": f"engine.zero.stage3_{key}" for key in _WITHOUT_PREFIX},
}
"""Key of the recipe by key of DeepSpeed."""


def _holds_int(annotation: Any) -> bool:
    return annotation is int or any(_holds_int(option) for option in typing.get_args(annotation))


_WHOLE = {path for path, field in walk(Recipe) if _holds_int(field.annotation)}

WHOLE = {json_path for json_path, path in SAME.items() if path in _WHOLE}
"""Keys of DeepSpeed that are whole numbers; people write 2e8."""
