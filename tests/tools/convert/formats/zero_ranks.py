"""Checkpoints that DeepSpeed writes of weights with Megatron-DeepSpeed's names, as one of two ranks.

FOLDER/NAME/global_step2 for every case, and FOLDER/NAME.pt with the fp32 weights as DeepSpeed tells them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

LAYERS, HIDDEN, HEADS, FFN, POSITIONS, VOCAB = 2, 12, 2, 20, 9, 26
ARGS = {
    "num_layers": LAYERS,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "ffn_hidden_size": FFN,
    "max_position_embeddings": POSITIONS,
    "seq_length": POSITIONS,
    "add_position_embedding": True,
    "bias_gelu_fusion": True,
    "consumed_train_samples": 64,
    "tensor_model_parallel_size": 1,
}
CLIENT = {
    "args": argparse.Namespace(**ARGS),
    "checkpoint_version": 3.0,
    "iteration": 2,
    "universal_checkpoint_info": {"universal_checkpoint_version": 0.4, "original_vocab_size": VOCAB - 1},
}
CASES = {
    "stage 1 fp16": (1, "fp16", {}),
    "stage 1 bf16": (1, "bf16", {"data_types": {"grad_accum_dtype": "fp32"}}),
    "stage 2": (2, "bf16", {}),
    "stage 3": (3, "bf16", {}),
}
"""ZeRO's stage, dtype and more of the configuration; the second is the one of BF16_Optimizer."""

WITH_FROZEN = ("stage 2", "stage 3")
FROZEN = "language_model.embedding.position_embeddings.weight"


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the weights' names and shapes; sizes are odd, so that ZeRO pads."""
    found = {
        "embedding.word_embeddings.weight": (VOCAB, HIDDEN),
        "embedding.position_embeddings.weight": (POSITIONS, HIDDEN),
    }
    for number in range(LAYERS):
        layer = f"encoder.layers.{number}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found |= {f"{layer}.{norm}.weight": (HIDDEN,), f"{layer}.{norm}.bias": (HIDDEN,)}
        linear = {
            "self_attention.query_key_value": (3 * HIDDEN, HIDDEN),
            "self_attention.dense": (HIDDEN, HIDDEN),
            "mlp.dense_h_to_4h": (FFN, HIDDEN),
            "mlp.dense_4h_to_h": (HIDDEN, FFN),
        }
        for name, (rows, columns) in linear.items():
            found |= {f"{layer}.{name}.weight": (rows, columns), f"{layer}.{name}.bias": (rows,)}
    found |= {f"encoder.final_layernorm.{kind}": (HIDDEN,) for kind in ("weight", "bias")}
    return {f"language_model.{name}": shape for name, shape in found.items()}


class Part(torch.nn.Module):
    """A module whose parameters are given by their dotted names, and whose output depends on all of them."""

    def __init__(self, named):
        super().__init__()
        inside = {}
        for name, parameter in named.items():
            first, _, rest = name.partition(".")
            if rest:
                inside.setdefault(first, {})[rest] = parameter
            else:
                self.register_parameter(name, parameter)
        for name, parameters in inside.items():
            self.add_module(name, Part(parameters))

    def forward(self):
        own = [parameter.float().square().sum() for parameter in self.parameters(recurse=False)]
        return sum([*own, *(child() for child in self.children())])


def model(seed=0):
    """Return a model with random weights, the positions frozen."""
    generator = torch.Generator().manual_seed(seed)
    named = {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes().items()}
    return Part(named)


def engine_of(stage, dtype, more, *, seed=0, is_frozen=False):
    """Return an engine of DeepSpeed with two groups of parameters, as Megatron has."""
    from pretrain.bridge import deepspeed as bridge
    from pretrain.cpu.backend import CpuBackend

    deepspeed = bridge.install(CpuBackend())
    bridge.connect(CpuBackend())
    module = model(seed)
    module.get_parameter(FROZEN).requires_grad_(not is_frozen)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() == 2], "weight_decay": 0.1},
        {"params": [parameter for parameter in trained if parameter.dim() == 1], "weight_decay": 0.0},
    ]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 30},
        "zero_force_ds_cpu_optimizer": False,
        dtype: {"enabled": True},
        **more,
    }
    return deepspeed.initialize(
        model=module, optimizer=torch.optim.AdamW(groups, lr=1e-2), config=config, dist_init_required=False
    )[0]


def save(folder, name):
    """Train two steps and save."""
    from deepspeed.utils import safe_get_full_fp32_param

    from pretrain.bridge import deepspeed as bridge

    engine = engine_of(*CASES[name], is_frozen=name in WITH_FROZEN)
    for _ in range(2):
        engine.backward(engine())
        engine.step()
    told = {
        name: safe_get_full_fp32_param(parameter).clone()
        for name, parameter in engine.module.named_parameters()
        if parameter.requires_grad
    }
    if dist.get_rank() == 0:
        torch.save(told, folder / f"{name}.pt")
    engine.save_checkpoint(folder / name, client_state=CLIENT)
    engine.destroy()
    bridge.disconnect()


def main():
    """Save all cases as one of two ranks."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    for name in CASES:
        save(folder, name)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
