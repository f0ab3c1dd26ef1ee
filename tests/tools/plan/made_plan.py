"""A plan that nothing traced, with round numbers."""

from __future__ import annotations

from dataclasses import replace

from pretrain.plugins.backend import Figures
from pretrain.plugins.negotiation.kernel_table import KernelRow, KernelTable
from pretrain.recipe import make_recipe
from pretrain.recipe.layout import lay_out
from pretrain.tools.plan.device import Efficiencies, PlanDevice
from pretrain.tools.plan.plan import Plan
from pretrain.tools.plan.stage_plan import Costs, ModuleRow, Moment, StagePlan
from pretrain.tools.plan.step_time import Range, StepTime

GIB = 2**30
RECIPE = {
    "model": {"num_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32},
    "tokenizer": {"type": "bytes"},
    "data": {"path": "corpus"},
    "train": {"micro_batch_size": 1, "global_batch_size": 16, "train_iters": 1000},
    "optimizer": {"lr": 0.001},
    "parallel": {"pipeline_model_parallel_size": 4},
}
GROUPS = "process groups"
ROWS = (
    ModuleRow(name="embedding.word_embeddings", count=1, parameters=1_000_000, weights=2**21, activations=0),
    ModuleRow(name="decoder.layers.*.mlp.linear_fc1", count=2, parameters=3_000_000, weights=6 * 2**20, activations=0),
    ModuleRow(name="decoder.layers.*.mlp", count=2, parameters=0, weights=0, activations=2**20),
    ModuleRow(name="embedding.embedding_dropout", count=1, parameters=0, weights=0, activations=2**19),
)


def recipe(overrides=()):
    return make_recipe(RECIPE, overrides, source="tiny.yml")


def stage(number, gib, *, host=0, part="activations"):
    """Return a stage that takes so many GiB: 1 of weights, 1 of reserve, 1 of process groups, the rest of one part."""
    parts = {"weights": GIB, part: (gib - 3) * GIB, "reserve": GIB, GROUPS: GIB}
    course = [
        Moment(at=0.0, parts={"weights": GIB}),
        Moment(at=0.5, parts={"weights": GIB, part: parts[part]}),
        Moment(at=1.0, parts={"weights": GIB}),
    ]
    return StagePlan(
        stage=number,
        rank=number * 2,
        layers="2",
        parameters=4_000_000,
        parts=parts,
        host_bytes=host,
        peak_at="a backward pass, after 4 forward passes had begun: decoder.layers.0.mlp",
        micro_batches=5 - number,
        course=course,
        modules=ROWS,
        costs=Costs(forward={}, backward={}, once={}, messages={}, messages_once={}),
    )


def kernel(operation, name):
    return KernelRow(operation=operation, kernel=name, kind="", provider="acme 1.0", request={}, rejected=())


TIME = StepTime(
    seconds=Range(1.5, 2.5),
    tokens_per_second=Range(25.6, 42.7),
    flops_per_second=Range(100e12, 150e12),
    peak_share=Range(0.32, 0.48),
    days=Range(63.41, 105.4),
    device_hours=Range(63_412.0, 105_437.0),
    tokens=300_000_000_000,
    bubble=0.157,
    communication=0.042,
    update=0.001,
    best=Efficiencies(matmul=0.8, memory=0.9, links=0.9),
    worst=Efficiencies(matmul=0.5, memory=0.6, links=0.7),
    measured_in="",
    unknown_links=("messages between nodes count nothing",),
    left_out=("kernel launches",),
)


def plan(*stages, memory=16 * GIB, time=TIME, figures=None, **changes):
    """Return a plan of 8 ranks, by default of the stages 0, 1 and 3 of 4, which take 12, 9 and 5 GiB."""
    made = recipe()
    figures = figures or Figures(context_memory=GIB // 2, group_memory=GIB // 4)
    whole = Plan(
        recipe=made,
        device=PlanDevice(backend_name="acme", name="Acme 9", memory=memory, peak_flops=None, figures=figures),
        layout=lay_out(made, 8),
        vocab_size=257,
        stages=stages or (stage(0, 12), stage(1, 9), stage(3, 5)),
        kernels=KernelTable(
            backend="acme",
            provider="acme 1.0",
            rows=(kernel("attention", "flash"), kernel("linear", "plain"), kernel("linear", "fused")),
        ),
        time=time,
        notices=("tokenizer: vocab.json not found; counting with 257 entries",),
    )
    return replace(whole, **changes)
