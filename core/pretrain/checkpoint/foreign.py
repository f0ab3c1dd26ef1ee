"""Detection of other programs' checkpoints, for error messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SIGNS = {
    "a checkpoint of GPT-NeoX or DeepSpeed's pipelines": ("layer_*-model*.pt", "global_step*/layer_*-model*.pt"),
    "a checkpoint of DeepSpeed": (
        *("mp_rank_*_model_states.pt", "zero_pp_rank_*_model_states.pt"),
        *("*/mp_rank_*_model_states.pt", "*/zero_pp_rank_*_model_states.pt", "zero_to_fp32.py"),
    ),
    "a checkpoint of Megatron-LM in its old format": (
        *("mp_rank_*/model_optim_rng.pt", "iter_*/mp_rank_*/model_optim_rng.pt", "release/mp_rank_*/*.pt"),
    ),
    "a model of Hugging Face": (
        *("model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin", "config.json"),
    ),
}


def foreign_checkpoint(folder: Path) -> str | None:
    """Describe the checkpoint of another program in a folder; None if there is none."""
    for program, patterns in _SIGNS.items():
        found = next((entry for pattern in patterns for entry in folder.glob(pattern)), None)
        if found is not None:
            return f"{program} ({found.relative_to(folder)}), which this version cannot read"
    return None
