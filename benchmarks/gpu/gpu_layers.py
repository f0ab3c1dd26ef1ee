"""Forward and backward pass of one transformer layer on one GPU: GPT-3 175B's and GPT-NeoX-20B's.

    python -m benchmarks.gpu.gpu_layers [--rounds 10] [--only GPT-3] [--keep]

bf16, sequence 2048, gradients added up in fp32 as in a training, no recompute, no optimizer step. GPT-3's layer is what
one of 8 tensor-parallel ranks computes, without the communication: 12 of 96 heads, an eighth of the MLP, all of the
hidden size. A sample is the mean of ten passes in a row.

Utilisation is the layer's model FLOPs (pretrain/report/flops.py: the keys that are seen) over the datasheet's.
"""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.gpu import command
from pretrain.bridge import megatron
from pretrain.recipe import make_recipe
from pretrain.report.flops import flops_per_sequence

PASSES = 10
GPT3 = {
    "hidden_size": 12288,
    "num_attention_heads": 12,
    "kv_channels": 128,
    "ffn_hidden_size": 6144,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
NEOX = {
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "position_embedding_type": "rope",
    "rotary_percent": 0.25,
    "parallel_residual": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
LAYERS = {
    "GPT-3 175B, one of 8 ranks": (GPT3, 1),
    "GPT-3 175B, one of 8 ranks, dropout 0.1": (GPT3 | {"hidden_dropout": 0.1, "attention_dropout": 0.1}, 1),
    "GPT-NeoX-20B": (NEOX, 4),
}
"""Row -> the recipe's model, and its micro-batch size in recipes/."""
TINY = {"hidden_size": 96, "num_attention_heads": 3, "kv_channels": 32, "ffn_hidden_size": 64, "seq_length": 64}


def main() -> None:
    parser = command.parser("gpu_layers", __doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    arguments = parser.parse_args()
    plugins = command.plugins(tiny=arguments.tiny)
    megatron.install(plugins.backend)
    peak = plugins.backend.peak_flops(torch.bfloat16)
    measured = {}
    for name, (model, micro_batch_size) in LAYERS.items():
        if arguments.only in name:
            recipe = recipe_of(model | (TINY if arguments.tiny else {}), micro_batch_size)
            seconds = measure(recipe, plugins, arguments.rounds)
            measured[name] = {
                "micro_batch_size": micro_batch_size,
                "milliseconds": [round(1000 * value, 3) for value in seconds],
                "utilisation": utilisation(recipe, statistics.median(seconds), peak),
                "kernels": command.kernels(plugins, recipe, vocab_size=256),
            }
            print(name, measured[name]["milliseconds"], measured[name]["utilisation"], flush=True)
    command.report("gpu_layers", arguments, plugins, {"peak_flops": peak, "layers": measured})


def recipe_of(model: dict[str, object], micro_batch_size: int):
    """Return a recipe with one such layer."""
    return make_recipe(
        {
            "model": {"num_layers": 1, "seq_length": 2048, "activation": "gelu_tanh", **model},
            "tokenizer": {"type": "bytes"},
            "data": {"path": "unused"},
            "train": {"micro_batch_size": micro_batch_size, "global_batch_size": micro_batch_size, "train_iters": 1},
            "optimizer": {"lr": 1e-4},
            "precision": {"dtype": "bf16"},
        }
    )


def measure(recipe, plugins, rounds: int) -> list[float]:
    """Return seconds of one forward and backward pass, one sample a round."""
    from pretrain.engine import groups  # after the bridge
    from pretrain.engine.build import build_engine

    device = plugins.backend.device(0)
    groups.join_world(plugins.backend, 0, 1, 10)
    try:
        engine, _ = build_engine(recipe, plugins, 256, device, notify=print)
        run = passes(engine.chunks[0].module.module, recipe, device)
        run()  # warms up, and compiles what is compiled when it is first called
        return [sample(run, device) for _ in range(rounds)]
    finally:
        groups.leave()


def passes(model, recipe, device):
    """Return a call of PASSES passes through the layer."""
    (layer,) = model.decoder.layers
    size = (recipe.model.seq_length, recipe.train.micro_batch_size, recipe.model.hidden_size)
    x = torch.randn(size, device=device, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn_like(x)
    is_rope = recipe.model.position_embedding_type == "rope"
    rotations = model.rotary_pos_emb(recipe.model.seq_length) if is_rope else None

    def run() -> None:
        for _ in range(PASSES):
            x.grad = None
            output, _ = layer(x, None, rotary_pos_emb=rotations)
            output.backward(grad)

    return run


def sample(run, device) -> float:
    """Return the seconds of one pass."""
    start = time.perf_counter()
    run()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return (time.perf_counter() - start) / PASSES


def utilisation(recipe, seconds: float, peak: float | None) -> float | None:
    """Return the layer's model FLOP/s over the device's; None where its peak is not known."""
    if peak is None:
        return None
    flops = recipe.train.micro_batch_size * flops_per_sequence(recipe.model, vocab_size=0)
    return round(flops / seconds / peak, 4)


if __name__ == "__main__":
    main()
