"""Steps whose memory is measured, and planned: `python -m plan.measured NAME FOLDER`, as one rank of WORLD_SIZE.

Each rank writes FOLDER/NAME.RANK.json: for each case the measured and the planned peak in bytes.
"""

from __future__ import annotations

import gc
import json
import os
import sys
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
}
TWO = {
    "tensor": TENSOR,
    # More layers: gloo's threads hold the tensors of collectives that have ended, now longer, now shorter.
    "sequence": TENSOR | {"parallel.sequence_parallel": True, "model.num_layers": 12},
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
OF_COMMIT = {"one": ["selective recompute"], "two": ["interleaved", "ZeRO-3"]}
CASES = {"one": ONE, "two": TWO}


def main() -> None:
    """Measure all cases as one rank, then plan them."""
    from pretrain.bridge import megatron, planning
    from pretrain.cpu.backend import CpuBackend

    name, folder, chosen = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    recipes = {case: recipe_of(CASES[name][case]) for case in chosen}
    backend = CpuBackend()
    megatron.install(backend)
    from pretrain.engine import groups

    groups.join_world(backend, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), timeout_minutes=10)
    measured = {case: measure(recipe) for case, recipe in recipes.items()}
    groups.leave()
    planning.install()
    planned = {case: plan(recipe) for case, recipe in recipes.items()}
    stages = {case: steps_of(recipe)[1] for case, recipe in recipes.items()}
    found = {case: {"stage": stages[case], "measured": measured[case], "planned": planned[case]} for case in chosen}
    (folder / f"{name}.{os.environ['RANK']}.json").write_text(json.dumps(found))


def recipe_of(settings):
    """Return the quickstart recipe with the settings of a case."""
    from pretrain.recipe import load_recipe

    file = Path(__file__).parents[2] / "recipes" / "quickstart.yml"
    return load_recipe(file, [f"{key}={json.dumps(value)}" for key, value in {**TINY, **settings}.items()])


def steps_of(recipe):
    """Return the layout, this rank's stage, and the micro-batches of its two steps: of a training, and of its plan."""
    from pretrain.plan.trace.stages import planned_micro_batches
    from pretrain.recipe.layout import lay_out

    layout = lay_out(recipe, int(os.environ["WORLD_SIZE"]))
    stage = int(os.environ["RANK"]) // (layout.tensor_model_parallel_size * layout.data_parallel_size)
    count = layout.num_microbatches(recipe.train.global_batch_size)
    fewest, needed = planned_micro_batches(layout, stage, count)
    return layout, stage, (fewest, count), (fewest, needed)


def measure(recipe) -> int:
    """Return the most that torch's CPU allocator has handed out in a step of a training: the least of three steps.

    gloo's threads hold the tensors of a collective that has ended, now longer, now shorter.
    """
    import torch
    from megatron.core import parallel_state

    from pretrain.engine.build import build_engine
    from pretrain.plan.trace.rank_trace import batches_of
    from pretrain.plugins.host.manager import load

    _, _, steps, _ = steps_of(recipe)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        engine, _ = build_engine(recipe, load("cpu"), VOCAB_SIZE, torch.device("cpu"), print)
        for micro_batches in (*steps, steps[-1], steps[-1]):
            with torch.profiler.record_function("a step"):
                engine.train_step(batches_of(recipe, micro_batches) if engine.reads_data else None, micro_batches)
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
    from pretrain.plan.trace.rank_trace import trace_rank
    from pretrain.plan.trace.stage_of_trace import stage_of
    from pretrain.plugins.host.manager import load

    layout, stage, _, steps = steps_of(recipe)
    trace = trace_rank(
        recipe,
        load("cpu"),
        rank=int(os.environ["RANK"]),
        world_size=layout.world_size,
        vocab_size=VOCAB_SIZE,
        micro_batches=steps,
    )
    return stage_of(trace, stage=stage, layers="", recipe=recipe).allocated_bytes


if __name__ == "__main__":
    main()
