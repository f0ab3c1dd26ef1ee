"""Searched layouts of a small model, and full plans of them: `python -m tools.plan.search.small_model TASK`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from pretrain.plugins.backend import Figures
from pretrain.recipe import make_recipe
from pretrain.recipe.layout import lay_out
from pretrain.tools.plan.device import DeviceOptions, PlanDevice, find_device
from pretrain.tools.plan.plan import make_plan
from pretrain.tools.plan.search.choices import LayoutChoice, set_arguments
from pretrain.tools.plan.search.estimates import layout_peak
from pretrain.tools.plan.search.search import search, to_json
from pretrain.tools.plan.search.trace_pieces import trace_pieces
from pretrain.tools.plan.step_time import step_time
from pretrain.tools.plan.trace.stage_tracing import TraceSubject, trace_stages

if TYPE_CHECKING:
    from pretrain.tools.plan.stage_plan import StagePlan

RECIPE = {
    "model": {
        "num_layers": 8,
        "hidden_size": 3072,
        "num_attention_heads": 24,
        "seq_length": 2048,
        "max_position_embeddings": 2048,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
    },
    "tokenizer": {"type": "gpt2", "vocab_file": "vocab.json", "merge_file": "merges.txt"},
    "data": {"path": "text_document"},
    "train": {"micro_batch_size": 1, "global_batch_size": 16, "train_iters": 10},
    "precision": {"dtype": "fp16"},
    "optimizer": {"lr": 1.0e-4},
    "schedule": {"lr_decay_style": "constant"},
}
TINY = ("model.num_layers=4", "model.hidden_size=128", "model.num_attention_heads=4", "model.seq_length=256")
VOCAB_SIZE = 50257
DEVICE = "NVIDIA A100-SXM4-80GB"
MEMORY = 1100 * 2**20
FIRST = LayoutChoice(
    tensor=2, pipeline=4, chunks=1, data=2, micro_batch=1, recompute="none", with_sequence=False, zero=0
)
CHOICES = (
    FIRST,
    replace(FIRST, recompute="full", zero=1),
    replace(FIRST, pipeline=2, chunks=2, data=4, micro_batch=2, recompute="selective", with_sequence=True, zero=1),
    replace(FIRST, tensor=4, pipeline=1, data=4, micro_batch=2, with_sequence=True, zero=1),
    replace(FIRST, tensor=4, pipeline=2, chunks=4, with_sequence=True),
    replace(FIRST, pipeline=8, data=1, micro_batch=4, recompute="full", with_sequence=True),
)
EXPERTS = (
    *(
        "model.num_experts=8",
        "model.moe_ffn_hidden_size=3072",
        "model.activation=swiglu",
        "model.add_bias_linear=false",
    ),
    *("model.position_embedding_type=rope", "precision.dtype=bf16", "recompute.granularity=none"),
)
DEEPSEEK = (*EXPERTS, "model.first_k_dense_replace=1", "model.moe_layer_freq=2", "model.ffn_hidden_size=8192")
WITH_EXPERTS = (
    replace(FIRST, tensor=1, pipeline=2, data=8, expert=8, zero=1),
    replace(FIRST, pipeline=2, data=4, with_sequence=True, expert=4, zero=1),
    replace(FIRST, tensor=4, pipeline=2, with_sequence=True, expert=2, expert_tensor=4),
    replace(FIRST, tensor=2, pipeline=4, data=2, with_sequence=True, expert_tensor=2, recompute="full"),
)


def peaks() -> list[float]:
    """Return the searched peak of each choice in that of its full plan."""
    return _peaks((), CHOICES)


def peaks_with_experts() -> list[float]:
    """Return the same of a model with experts."""
    return _peaks(EXPERTS, WITH_EXPERTS)


def peaks_with_some_experts() -> list[float]:
    """Return the same of a model of which some layers alone have experts."""
    return _peaks(DEEPSEEK, WITH_EXPERTS)


def _peaks(overrides: tuple[str, ...], choices: tuple[LayoutChoice, ...]) -> list[float]:
    recipe = make_recipe(RECIPE, overrides)
    device = find_device(recipe, DeviceOptions(backend="cuda", name=DEVICE))
    pieces = trace_pieces(recipe, device, VOCAB_SIZE, {each.pieces for each in choices})
    found = []
    for choice in choices:
        plan = make_plan(
            make_recipe(RECIPE, (*overrides, *set_arguments(recipe, choice))),
            device,
            devices=16,
            vocab_size=VOCAB_SIZE,
        )
        searched = layout_peak(recipe, device, choice, pieces[choice.pieces])
        found.append(searched / plan.peak_bytes)
    return found


def found() -> dict[str, object]:
    """Return what a search finds for a tiny model on four devices with little memory."""
    recipe = make_recipe(RECIPE, (*TINY, "parallel.tensor_model_parallel_size=4"))
    device = find_device(recipe, DeviceOptions(backend="cuda", name=DEVICE, memory=MEMORY, devices_per_node=1))
    return to_json(search(recipe, device, 4, VOCAB_SIZE, lambda _: None))


def seconds() -> dict[str, float]:
    """Return the seconds of a step on the CPU with made-up figures: none, full recompute, and micro-batches of 4."""
    changes = {"none": (), "full": ("recompute.granularity=full",), "four": ("train.micro_batch_size=4",)}
    return {name: _seconds(overrides) for name, overrides in changes.items()}


def _seconds(overrides: tuple[str, ...]) -> float:
    recipe = make_recipe(RECIPE, (*TINY, "precision.dtype=fp32", *overrides))
    layout = lay_out(recipe, 1)
    figures = Figures(memory_bandwidth=20e9)
    device = PlanDevice(
        backend_name="cpu", name="made up", is_named=False, memory=None, peak_flops=200e9, figures=figures
    )
    subject = TraceSubject(recipe=recipe, device=device, layout=layout, vocab_size=1024)
    stages: list[StagePlan] = [each.plan for each in trace_stages(subject)]
    time = step_time(recipe, device, layout, stages)
    assert time is not None
    return time.seconds.mean


if __name__ == "__main__":
    tasks = {each.__name__: each for each in (peaks, peaks_with_experts, peaks_with_some_experts, found, seconds)}
    print(json.dumps(tasks[sys.argv[1]]()))
