"""Seconds that a rank of a large job waits for its weights: making modules, then setting initial values.

    python -m benchmarks.training.startup_weights [--layers 12] [--keep]

The shapes are those of rank 0 of 64 that train recipes/gpt3.yml (tensor 8, pipeline 8: 2.8 G parameters in fp16, 5.6
GB), here in a world of one: an eighth of the heads, of the feed-forward and of the vocabulary, 12 of 96 layers. CPU
seconds are kept beside wall seconds, because other processes do not change them.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch

from benchmarks import machine
from pretrain.bridge import megatron
from pretrain.cpu.backend import CpuBackend

megatron.install(CpuBackend())

from pretrain.engine import groups  # noqa: E402  after the bridge
from pretrain.engine.kernels import Negotiation  # noqa: E402
from pretrain.model import build as model_build  # noqa: E402
from pretrain.plugins.host.manager import load  # noqa: E402
from pretrain.recipe import load_recipe  # noqa: E402

VOCABULARY = 6400
RANK_0 = (
    *("model.num_attention_heads=12", "model.num_query_groups=12", "model.kv_channels=128"),
    *("model.ffn_hidden_size=6144", "parallel.tensor_model_parallel_size=1", "parallel.pipeline_model_parallel_size=1"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--keep", action="store_true", help="write results/startup_weights.json")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    result = {
        **machine.describe(threads=torch.get_num_threads()),
        "load before": round(load_before, 1),
        "shared machine": load_before > 1,
        "layers": arguments.layers,
        **measure(arguments.layers),
    }
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep("startup_weights", result)


def measure(layers: int) -> dict[str, object]:
    """Return parameters, and wall and CPU seconds of making modules and of setting weights."""
    recipe = load_recipe("recipes/gpt3.yml", (*RANK_0, f"model.num_layers={layers}"))
    plugins = load("cpu")
    groups.join_world(plugins.backend, 0, 1, timeout_minutes=1)
    negotiation = Negotiation(recipe, plugins)
    collectives = negotiation.collectives()
    groups.make_parallel_groups(recipe, collectives.collectives)
    groups.seed(recipe.train.seed)
    kernels = negotiation.kernels(VOCABULARY, collectives)
    spent = {}
    set_weights = model_build.initialize

    def timed(*given: object) -> None:
        start = clocks()
        set_weights(*given)
        spent["weights"] = since(start)

    model_build.initialize = timed
    start = clocks()
    (chunk,) = model_build.build(
        recipe,
        kernels,
        attention_of=lambda _: kernels.attention,
        point_to_point=plugins.backend.point_to_point(),
        device=torch.device("cpu"),
        vocab_size=VOCABULARY,
    )
    spent["all"] = since(start)
    count = sum(parameter.numel() for parameter in chunk.parameters())
    groups.leave()
    return {"parameters": count, "dtype": "fp16", **spent}


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(start: tuple[float, float]) -> dict[str, float]:
    wall, cpu = clocks()
    return {"wall seconds": round(wall - start[0], 2), "CPU seconds": round(cpu - start[1], 2)}


if __name__ == "__main__":
    main()
