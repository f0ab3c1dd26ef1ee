"""Estimates for published speeds: the model of each row, by traced pieces."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pretrain.recipe import make_recipe
from pretrain.report.flops import flops_per_sequence
from pretrain.tools.plan.device import DeviceOptions, find_device
from pretrain.tools.plan.search.choices import LayoutChoice
from pretrain.tools.plan.search.estimates import estimated_seconds
from pretrain.tools.plan.search.trace_pieces import trace_pieces

if TYPE_CHECKING:
    from pretrain.recipe import Recipe

TABLE = Path(__file__).with_name("throughput.yml")
PEAKS = {"NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA H100 80GB HBM3": 989.4e12}
"""Dense FLOP/s in 16 bits, by which the sources divide."""
TENSOR = 8
"""Tensor-parallel size of every row that is compared."""


def table() -> dict[str, dict[str, Any]]:
    """Read the table."""
    return yaml.safe_load(TABLE.read_text())


def devices(row: dict[str, Any]) -> int:
    return TENSOR * row["pipeline"] * row["data"]


def recipe_of(source: dict[str, Any], row: dict[str, Any]) -> Recipe:
    """Return the recipe of a row; what the source does not say has the recipe's defaults."""
    is_split = row["data"] > 1 and source["recompute"] != "full"
    return make_recipe(
        {
            "model": {
                "num_layers": row["layers"],
                "hidden_size": row["hidden"],
                "num_attention_heads": row["heads"],
                "seq_length": source["seq_length"],
                "max_position_embeddings": source["seq_length"],
                "activation": "gelu_tanh",
            },
            "tokenizer": {"type": "gpt2", "vocab_file": "vocab.json", "merge_file": "merges.txt"},
            "data": {"path": "text_document"},
            "train": {"micro_batch_size": row["micro"], "global_batch_size": row["batch"], "train_iters": 10},
            "precision": {"dtype": "bf16", "grad_reduce_in_fp32": False},
            "optimizer": {"lr": 1.0e-4},
            "schedule": {"lr_decay_style": "constant"},
            "parallel": {
                "tensor_model_parallel_size": TENSOR,
                "overlap_grad_reduce": is_split,
                "use_distributed_optimizer": is_split,
                "overlap_param_gather": is_split,
            },
        }
    )


def model_flops(source: dict[str, Any], row: dict[str, Any]) -> float:
    """Return the FLOPs of a step of one device, without recompute, as the papers count: attention's full square."""
    model = recipe_of(source, row).model
    unseen = model.num_layers * model.seq_length * (model.seq_length - 1) // 2  # keys
    sequence = flops_per_sequence(model, source["vocab_size"]) + 12 * unseen * model.hidden_size
    return row["batch"] * sequence / devices(row)


def estimate(source: dict[str, Any], row: dict[str, Any]) -> tuple[float, float]:
    """Return the low and the high estimate of a step in seconds."""
    recipe = recipe_of(source, row)
    with_sequence = source["recompute"] != "full"
    choice = LayoutChoice(
        tensor=TENSOR,
        pipeline=row["pipeline"],
        chunks=row["chunks"],
        data=row["data"],
        micro_batch=row["micro"],
        recompute=source["recompute"],
        with_sequence=with_sequence,
        zero=int(recipe.parallel.use_distributed_optimizer),
    )
    device = find_device(recipe, DeviceOptions(backend="cuda", name=source["device"]))
    (pieces,) = trace_pieces(recipe, device, source["vocab_size"], [choice.pieces]).values()
    seconds = estimated_seconds(choice.recipe(recipe), device, choice, pieces)
    assert seconds is not None
    return seconds.low, seconds.high


def published_seconds(source: dict[str, Any], row: dict[str, Any], peak: float) -> float:
    """Return the published time of a step; a speed that counts recompute has 4/3 of the model's FLOPs."""
    flops = model_flops(source, row) * (4 / 3 if source["recompute"] == "full" else 1.0)
    return flops / (row["mfu"] * peak if "mfu" in row else row["tflops"] * 1e12)


def deviation(source: dict[str, Any], row: dict[str, Any]) -> float:
    """Return the middle of the estimate / the published time - 1."""
    low, high = estimate(source, row)
    return (low + high) / 2 / published_seconds(source, row, PEAKS[source["device"]]) - 1


if __name__ == "__main__":
    chosen = table()[sys.argv[1]]
    print(json.dumps({row["name"]: deviation(chosen, row) for row in chosen["rows"] if row["name"] in sys.argv[2:]}))
