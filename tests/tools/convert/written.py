"""Checkpoints of other programs as these write them, by the public sources of their formats; the numbers are random."""

from __future__ import annotations

import argparse
import random
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from pathlib import Path

LAYERS, HIDDEN, HEADS, FFN, POSITIONS, VOCAB = 4, 32, 4, 128, 16, 256
PARAMETERS = VOCAB * HIDDEN + POSITIONS * HIDDEN + LAYERS * (12 * HIDDEN**2 + 13 * HIDDEN) + 2 * HIDDEN
"""Of a GPT-2: h (V + s) + l (12 h^2 + 13 h) + 2 h, Megatron-LM's formula with every bias."""

NEOX_PARAMETERS = 2 * VOCAB * HIDDEN + LAYERS * (12 * HIDDEN**2 + 13 * HIDDEN) + 2 * HIDDEN
"""Of a GPT-NeoX: no positions, and an output layer of its own."""


def layer(tensor: int = 1, attention: str = "attention") -> dict[str, torch.Tensor]:
    """Return one rank's part of a transformer layer."""
    return {
        "input_layernorm.weight": torch.rand(HIDDEN),
        "input_layernorm.bias": torch.rand(HIDDEN),
        f"{attention}.query_key_value.weight": torch.rand(3 * HIDDEN // tensor, HIDDEN),
        f"{attention}.query_key_value.bias": torch.rand(3 * HIDDEN // tensor),
        f"{attention}.dense.weight": torch.rand(HIDDEN, HIDDEN // tensor),
        f"{attention}.dense.bias": torch.rand(HIDDEN),
        "post_attention_layernorm.weight": torch.rand(HIDDEN),
        "post_attention_layernorm.bias": torch.rand(HIDDEN),
        "mlp.dense_h_to_4h.weight": torch.rand(FFN // tensor, HIDDEN),
        "mlp.dense_h_to_4h.bias": torch.rand(FFN // tensor),
        "mlp.dense_4h_to_h.weight": torch.rand(HIDDEN, FFN // tensor),
        "mlp.dense_4h_to_h.bias": torch.rand(HIDDEN),
    }


def language_model(tensor: int, stage: int, stages: int, names: tuple[str, str]) -> dict:
    """Return one rank's `language_model` of Megatron-LM before megatron-core.

    Args:
        tensor: number of tensor-parallel ranks.
        stage: of the pipeline.
        stages: their number.
        names: of the transformer and of its attention, which changed between versions.
    """
    transformer, attention = names
    layers = {
        f"layers.{number}.{name}": weight
        for number in range(LAYERS // stages)
        for name, weight in layer(tensor, attention).items()
    }
    model = {transformer: layers}
    if stage == 0:
        words, positions = torch.rand(VOCAB // tensor, HIDDEN), torch.rand(POSITIONS, HIDDEN)
        model["embedding"] = {"word_embeddings": {"weight": words}, "position_embeddings": {"weight": positions}}
    if stage == stages - 1:
        layers |= {"final_layernorm.weight": torch.rand(HIDDEN), "final_layernorm.bias": torch.rand(HIDDEN)}
    return model


def release(folder: Path) -> None:
    """Write weights as Megatron-LM published GPT-2 345M in 2019: no args, no version, torch's format of then."""
    (folder / "release" / "mp_rank_00").mkdir(parents=True)
    state = {"model": {"language_model": language_model(1, 0, 1, ("transformer", "attention"))}, "iteration": 0}
    file = folder / "release" / "mp_rank_00" / "model_optim_rng.pt"
    torch.save(state, file, _use_new_zipfile_serialization=False)
    (folder / "latest_checkpointed_iteration.txt").write_text("release")


def megatron(folder: Path, tensor: int = 2, stages: int = 2) -> None:
    """Write a training checkpoint of Megatron-LM 3.0 (save_checkpoint in megatron/training/checkpointing.py)."""
    args = argparse.Namespace(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, ffn_hidden_size=FFN, seq_length=POSITIONS,
        max_position_embeddings=POSITIONS, padded_vocab_size=VOCAB, num_query_groups=1, group_query_attention=False,
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=stages, params_dtype=torch.float16,
    )  # fmt: skip
    for rank in range(tensor):
        for stage in range(stages):
            model = {"language_model": language_model(tensor, stage, stages, ("encoder", "self_attention"))}
            if stage == stages - 1 > 0:
                model["word_embeddings_for_head"] = {"weight": torch.rand(VOCAB // tensor, HIDDEN)}
            state = {
                "args": args,
                "checkpoint_version": 3.0,
                "iteration": 5000,
                "model": _halved(model),
                "optimizer": {"optimizer": {"state": {}}},
                "opt_param_scheduler": {"max_lr": 1e-4},
                "rng_state": [{"random_rng_state": random.getstate(), "np_rng_state": np.random.get_state()}],
            }
            place = (
                folder / "iter_0005000" / (f"mp_rank_{rank:02d}_{stage:03d}" if stages > 1 else f"mp_rank_{rank:02d}")
            )
            place.mkdir(parents=True)
            torch.save(state, place / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("5000")


def neox(folder: Path, tensor: int = 2) -> None:
    """Write GPT-NeoX's layer files (save_ds_checkpoint in megatron/checkpointing.py, and DeepSpeed's pipeline)."""
    folder = folder / "global_step150000"
    folder.mkdir(parents=True)
    rows = {"weight": torch.rand(VOCAB // tensor, HIDDEN).half()}
    middle = layer(tensor) | {"attention.rotary_emb.inv_freq": torch.rand(1)}
    numbered = {0: {"word_embeddings.weight": rows["weight"]}}
    numbered |= {number + 2: middle for number in range(LAYERS)}
    numbered |= {LAYERS + 3: {"norm.weight": torch.rand(HIDDEN), "norm.bias": torch.rand(HIDDEN)}}
    numbered |= {LAYERS + 4: {"final_linear.weight": rows["weight"]}}
    for number, state in numbered.items():
        for rank in range(tensor):
            torch.save(_halved(state), folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")
    args = {"num_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "padded_vocab_size": VOCAB}
    states = {
        "module": None,
        "ds_version": "0.3.15",
        "iteration": 150000,
        "args": args,
        "torch_rng_state": torch.get_rng_state(),
    }
    torch.save(states, folder / "mp_rank_00_model_states.pt")
    (folder.parent / "latest").write_text("global_step150000")


def zero3(folder: Path, tensor: int = 2, data: int = 2) -> None:
    """Write Megatron-DeepSpeed's files with ZeRO-3: shapes apart from the module, whose tensors are empty."""
    folder = folder / "global_step20"
    folder.mkdir(parents=True)
    whole = {}
    for key, value in language_model(tensor, 0, 1, ("encoder", "self_attention")).items():
        whole |= {f"language_model.{key}.{name}": tensor.shape for name, tensor in _flat(value)}
    state = {
        "module": {name: torch.empty(0, dtype=torch.bfloat16) for name in whole},
        "param_shapes": [OrderedDict(whole)],
        "ds_version": "0.19.8",
        "global_steps": 20,
        "args": argparse.Namespace(num_attention_heads=HEADS),
        "lr_scheduler": None,
    }
    for rank in range(tensor):
        for replica in range(data):
            torch.save(state, folder / f"zero_pp_rank_{replica}_mp_rank_{rank:02d}_model_states.pt")
            torch.save({}, folder / f"bf16_zero_pp_rank_{replica}_mp_rank_{rank:02d}_optim_states.pt")
    (folder.parent / "latest").write_text("global_step20")


def _halved(state: dict) -> dict:
    return {key: _halved(value) if isinstance(value, dict) else value.half() for key, value in state.items()}


def _flat(state: dict, prefix: str = ""):
    for key, value in state.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
