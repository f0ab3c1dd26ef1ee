"""One job: the engine of a recipe as one rank of a world, some steps of it, and their records."""

from __future__ import annotations

import os
import time
from itertools import repeat
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fake_gpu import modules, mutants, stand_ins, world
from fake_gpu.launches import Launches
from fake_gpu.observer import Observer
from pretrain.data.samples.sequence_pieces import ContextRank
from pretrain.engine.build import build_engine
from pretrain.model.experts import MixtureOfExperts
from pretrain.plugins.host.manager import load
from pretrain.recipe import load_recipe
from pretrain.tools.plan.trace.rank_trace import batch_of

RECIPES = Path(__file__).parents[4] / "recipes"
STEPS = 2

# Constants are made on the host and then moved, as they are where no device is at hand.
FakeTensorMode.avoid_device_init = property(lambda self: True)


def run(job: dict) -> dict:
    """Build, step and evaluate; this process is that rank from then on.

    Args:
        job: `recipe`, a file of recipes/; `set`, its overrides; `rank`, `world`, `micro_batches`; `product`, see
            `stand_ins`; `compile`, whether every different launch is compiled; `mutant`, see `mutants`; `steps`.
    """
    product = stand_ins.choose(job.get("product", "a100"))
    recipe = load_recipe(RECIPES / job["recipe"], tuple(job.get("set", ())))
    plugins = load("cuda")
    os.environ.update(plugins.backend.prepare(recipe))
    torch.use_deterministic_algorithms(recipe.train.deterministic_mode)
    world.join(job["rank"], job["world"])
    if recipe.engine.name == "deepspeed":
        modules.agree_on_everything()
    launches, observer, started = Launches(product, compiles=job.get("compile", False)), Observer(), time.process_time()
    batch = micro_batch(recipe, job["rank"])
    with FakeTensorMode(allow_non_fake_inputs=True), observer:
        mutants.apply(job.get("mutant"))
        engine, kernels = build_engine(recipe, plugins, job["vocab_size"], plugins.backend.device(0), lambda line: None)
        _even_load(engine.models)
        built = observer.take() | {"launches": launches.take()}
        steps = []
        for _ in range(job.get("steps", STEPS)):
            step = engine.train_step(_batches(job, batch, engine), job["micro_batches"])
            engine.advance_schedule(recipe.train.global_batch_size)
            steps.append(observer.take() | {"launches": launches.take(), "skipped": step.skipped})
        engine.evaluate(_batches(job, batch, engine), job["micro_batches"])
        evaluation = observer.take() | {"launches": launches.take()}
    return {
        "kernels": {row.operation: row.kernel for row in kernels.table.rows},
        "build": built,
        "steps": steps,
        "evaluation": evaluation,
        "faults": observer.faults,
        "seconds": time.process_time() - started,
    }


def _even_load(models):
    """Let every expert get as many rows: counts have no values here, for which the host waits once a layer."""
    for module in (module for model in models for module in model.modules()):
        if isinstance(module, MixtureOfExperts):
            module.exchange.even = module.router.model.moe_router_topk


def _batches(job, batch, engine):
    return repeat(batch, job["micro_batches"]) if engine.reads_data else None


def micro_batch(recipe, rank) -> dict:
    """Return a micro-batch on the host, as pretrain.data.samples.batches makes it; its numbers are real ones."""
    tensor, context = recipe.parallel.tensor_model_parallel_size, recipe.parallel.context_parallel_size
    return batch_of(recipe, ContextRank(rank // tensor % context, context))
