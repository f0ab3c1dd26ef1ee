"""Steps whose memory is measured and planned: `python -m tools.plan.measured OUTPUT CASES [real]`, one of WORLD_SIZE.

Each rank writes OUTPUT: for each case the measured and the planned peak in bytes. Tensors and kernels are real. The
other ranks are there with `real`. Else collectives return at once and move nothing; gloo's threads copy tensors, and
hold them, now longer, now shorter.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from itertools import repeat
from pathlib import Path

TINY = {
    "model.num_layers": 4,
    "model.hidden_size": 128,
    "model.num_attention_heads": 4,
    "model.seq_length": 256,
    "model.max_position_embeddings": 256,
    "tokenizer.vocab_size": 1024,
    "train.micro_batch_size": 8,
    "train.global_batch_size": 16,
}
VOCAB_SIZE = 1024
"""A multiple of the padding: of rows with padded columns torch's softmax makes a copy, which no plan sees."""
TENSOR = {"parallel.tensor_model_parallel_size": 2}
PIPELINE = {"parallel.pipeline_model_parallel_size": 2, "train.global_batch_size": 32}
ZERO = {"engine.name": "deepspeed", "precision.dtype": "bf16", "train.global_batch_size": 32}
BUCKET = {"engine.zero.reduce_bucket_size": 1_000_000}

ONE = {
    "GPT-2 in fp32": {},
    "GPT-2 in bf16 with dropout": {
        "precision.dtype": "bf16",
        "model.hidden_dropout": 0.1,
        "model.attention_dropout": 0.1,
    },
    "stored weights of attention": {"kernels.attention": "reference"},
    "selective recompute": {"recompute.granularity": "selective"},
    "full recompute": {"recompute.granularity": "full", "recompute.method": "uniform", "recompute.num_layers": 1},
    "Llama": {
        "model.activation": "swiglu",
        "model.normalization": "RMSNorm",
        "model.position_embedding_type": "rope",
        "model.num_query_groups": 2,
        "model.add_bias_linear": False,
    },
    "experts": {
        "model.activation": "swiglu",
        "model.position_embedding_type": "rope",
        "model.add_bias_linear": False,
        "model.num_experts": 8,
        "model.moe_ffn_hidden_size": 256,
        "model.moe_shared_expert_intermediate_size": 64,
        "model.first_k_dense_replace": 1,
    },
}
TWO = {
    "tensor": TENSOR,
    "sequence": TENSOR | {"parallel.sequence_parallel": True},
    "pipeline": PIPELINE,
    "interleaved": PIPELINE | {"parallel.virtual_pipeline_model_parallel_size": 2},
    "distributed optimizer": {
        "parallel.use_distributed_optimizer": True,
        "precision.dtype": "bf16",
        "train.global_batch_size": 32,
    },
    "ZeRO-0": ZERO | {"engine.zero.stage": 0, "precision.grad_reduce_in_fp32": False},
    "ZeRO-1": ZERO | {"engine.zero.stage": 1},
    "ZeRO-2": ZERO | BUCKET | {"engine.zero.stage": 2},
    "ZeRO-3": ZERO | BUCKET | {"engine.zero.stage": 3},
}
LARGE = {
    "2 x 4 x 1": TENSOR | PIPELINE | {"parallel.pipeline_model_parallel_size": 4, "parallel.sequence_parallel": True},
    "4 x 2 x 2": PIPELINE
    | {"parallel.tensor_model_parallel_size": 4, "parallel.virtual_pipeline_model_parallel_size": 2}
    | {"parallel.sequence_parallel": True, "parallel.use_distributed_optimizer": True, "precision.dtype": "bf16"},
}
SMALL = {"ZeRO-3, small": TWO["ZeRO-3"] | {"model.num_layers": 2, "train.global_batch_size": 16}}
"""The case of every commit."""
CASES = ONE | TWO | LARGE | SMALL


def main() -> None:
    """Measure all cases as one rank, then plan them."""
    from pretrain.bridge import megatron
    from pretrain.bridge.megatron import planning
    from pretrain.cpu.backend import CpuBackend

    output, chosen, is_real = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:] == ["real"]
    rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    recipes = {case: recipe_of(CASES[case]) for case in chosen}
    backend = CpuBackend()
    megatron.install(backend)
    from pretrain.engine import groups

    if is_real:
        groups.join_world(backend, rank, world_size, timeout_minutes=10)
    else:
        planning.install()
        groups.join_planned_world(rank, world_size)
        _no_gloo()
    measured = {case: measure(recipe, planned_world=not is_real) for case, recipe in recipes.items()}
    groups.leave()
    planning.install()
    planned = {case: plan(recipe) for case, recipe in recipes.items()}
    found = {case: {"measured": measured[case], "planned": planned[case]} for case in chosen}
    output.write_text(json.dumps(found))


def _no_gloo() -> None:
    """Let groups for the host be those of the world, too: a training makes some, and there are no other ranks."""
    import torch.distributed as dist

    make = dist.new_group

    def of_world(*arguments, **options):
        options.pop("backend", None)
        return make(*arguments, **options)

    dist.new_group = of_world


def recipe_of(settings):
    """Return the quickstart recipe with the settings of a case."""
    from pretrain.recipe import load_recipe

    file = Path(__file__).parents[3] / "recipes" / "quickstart.yml"
    return load_recipe(file, [f"{key}={json.dumps(value)}" for key, value in {**TINY, **settings}.items()])


def steps_of(recipe):
    """Return the layout, this rank's stage, and the micro-batches of its two steps: of a training, and of its plan."""
    from pretrain.recipe.layout import lay_out
    from pretrain.tools.plan.trace.stage_tracing import planned_micro_batches

    layout = lay_out(recipe, int(os.environ["WORLD_SIZE"]))
    stage = int(os.environ["RANK"]) // (layout.tensor_model_parallel_size * layout.data_parallel_size)
    count = layout.num_microbatches(recipe.train.global_batch_size)
    fewest, needed = planned_micro_batches(layout, stage, count)
    return layout, stage, (fewest, count), (fewest, needed)


def measure(recipe, *, planned_world: bool) -> int:
    """Return the most that torch's CPU allocator has handed out in a step of a training: the least of three steps."""
    import torch
    from megatron.core import parallel_state

    from pretrain.bridge import deepspeed as bridge_deepspeed
    from pretrain.cpu.backend import CpuBackend
    from pretrain.data.samples.sequence_pieces import ContextRank
    from pretrain.engine.build import build_engine
    from pretrain.plugins.host.manager import load
    from pretrain.tools.plan.trace.rank_trace import batch_of

    _, _, steps, _ = steps_of(recipe)
    if planned_world and recipe.engine.name == "deepspeed":
        bridge_deepspeed.install(CpuBackend(), planned=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        engine, _ = build_engine(recipe, load("cpu"), VOCAB_SIZE, torch.device("cpu"), print)
        for micro_batches in (*steps, steps[-1], steps[-1]):
            with torch.profiler.record_function("a step"):
                engine.train_step(repeat(batch_of(recipe, ContextRank())) if engine.reads_data else None, micro_batches)
    peak = peak_of(profile.profiler.kineto_results.experimental_event_tree())
    engine.close()
    del engine
    parallel_state.destroy_model_parallel()
    gc.collect()  # what is freed later would count as freed in the next case
    return peak


def peak_of(roots) -> int:
    """Return the highest sum of allocations and releases in a step: the least of the last three.

    What gloo allocates in a collective is left out: copies of the tensors, which no other library makes.
    """
    changes, begins, of_gloo, threads = [], [], set(), set()
    pending = [(root, False) for root in roots]
    while pending:
        event, in_collective = pending.pop()
        in_collective = in_collective or event.name.startswith(("c10d::", "gloo:"))
        if event.name == "a step":
            begins.append(event.start_time_ns)
            threads.add(event.start_tid)
        elif event.name == "[memory]":
            allocation = event.extra_fields
            changes.append((event.start_time_ns, allocation.alloc_size, allocation.ptr, event.start_tid, in_collective))
        pending += [(child, in_collective) for child in event.children]
    now, peaks, begins = 0, [], sorted(begins)
    for time, size, place, thread, in_collective in sorted(changes):
        if size > 0 and (in_collective or thread not in threads):
            of_gloo.add(place)
        elif size > 0 or place not in of_gloo:
            now += size
        else:
            of_gloo.remove(place)
        while len(peaks) < len(begins) and time >= begins[len(peaks)]:
            peaks.append(0)
        if peaks:
            peaks[-1] = max(peaks[-1], now)
    return min(peaks[-3:])


def plan(recipe) -> int:
    """Return the planned peak of the tensors of this rank."""
    from pretrain.plugins.host.manager import load
    from pretrain.tools.plan.trace.rank_trace import trace_rank
    from pretrain.tools.plan.trace.trace_summary import summarize_trace

    layout, stage, _, steps = steps_of(recipe)
    trace = trace_rank(
        recipe,
        load("cpu"),
        rank=int(os.environ["RANK"]),
        world_size=layout.world_size,
        vocab_size=VOCAB_SIZE,
        micro_batches=steps,
    )
    return summarize_trace(trace, stage=stage, layers="", recipe=recipe, groups=0, memory=None).allocated_bytes


if __name__ == "__main__":
    main()
