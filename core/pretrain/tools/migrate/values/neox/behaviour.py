"""Differences between versions of GPT-NeoX in settings of one name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

_FIRST = {"gpt-neox-2.0"}
_BEFORE_AUTUMN_2023 = {*_FIRST, "gpt-neox-2023.05"}
_BEFORE_GATED_ACTIVATIONS = {
    *_BEFORE_AUTUMN_2023,
    "gpt-neox-2023.10",
    "gpt-neox-2024.02",
    "gpt-neox-2024.04",
    "gpt-neox-2024.08",
}


def takes_type_of_fp16(settings: Settings) -> bool:
    """Say whether fp16.type chooses the dtype: until May 2023 (`calculate_derived`, the commit 056e9caf)."""
    return settings.program.name in _FIRST


def decays_too_long(settings: Settings) -> bool:
    """Say whether the warm-up is not part of the decay: until September 2023 (`AnnealingLR`, the commit 390d37cc)."""
    return settings.program.name in _BEFORE_AUTUMN_2023


def has_llama_mlp(settings: Settings) -> bool:
    """Say whether the MLP is LLaMA's, which mlp_type chose until September 2024 (`LLaMAParallelMLP`)."""
    return bool(settings.value("mlp_type") == "llama")


def has_old_mlp(settings: Settings) -> bool:
    """Say whether an activation does not yet gate the MLP: until September 2024 (`ParallelMLP`, the commit 0d4bdb96).

    The width is then fixed but for LLaMA's MLP.
    """
    return settings.program.name in _BEFORE_GATED_ACTIVATIONS or settings.value("mlp_type") is not None
