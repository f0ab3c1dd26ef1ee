"""ZeRO-3 with the optimizer's state and weights in files trains, saves and resumes as it does in memory.

The extension that reads and writes files is emulated: it needs libaio. With PRETRAIN_REAL_ASYNC_IO=1 it is DeepSpeed's.
"""

from __future__ import annotations

import importlib
import os
from functools import cache

import pytest

from engine import tiny
from engine.comparison import assert_close
from engine.deepspeed import emulated_async_io
from engine.layouts import ACCUMULATED, BF16, RECOMPUTE, STAGE
from pretrain.bridge import deepspeed as bridge
from pretrain.checkpoint import storage
from pretrain.cpu.backend import CpuBackend

OPTIMIZER = "engine.zero.offload_optimizer"
PARAM = "engine.zero.offload_param"
MODEL = ("model.num_layers=2", "model.hidden_size=256")
"""With matrices of 1 MiB, the least that goes to files."""

STATE = (f"{OPTIMIZER}.device=nvme", f"{OPTIMIZER}.cpu_adam=torch")
WEIGHTS = (
    f"{PARAM}.device=nvme",
    f"{PARAM}.max_in_cpu=0",
    f"{PARAM}.buffer_size=600000",
    "engine.zero.stage3_max_reuse_distance=0",
)
BOTH = (*STATE, *WEIGHTS)
SUB_GROUPS = ("engine.zero.sub_group_size=300000",)
PIPELINED = (f"{OPTIMIZER}.pipeline_read=true", f"{OPTIMIZER}.pipeline_write=true", f"{OPTIMIZER}.buffer_count=12")
LARGER = ("model.ffn_hidden_size=2048",)  # in 16 bits 1 MiB is twice as many elements
DTYPES = {"fp32": (), "bf16": (*BF16, *LARGER)}
FP16 = (
    *LARGER,
    "precision.dtype=fp16",
    "precision.initial_loss_scale=4194304",
    "precision.loss_scale_window=1000",
    "precision.hysteresis=1",
)
FAST = (f"{OPTIMIZER}.fast_init=true",)

CASES = {
    "state": (*STATE,),
    "state in sub-groups": (*STATE, *SUB_GROUPS),
    "state, read ahead": (*STATE, *SUB_GROUPS, f"{OPTIMIZER}.pipeline_read=true", f"{OPTIMIZER}.buffer_count=8"),
    "state, written behind": (*STATE, *SUB_GROUPS, f"{OPTIMIZER}.pipeline_write=true", f"{OPTIMIZER}.buffer_count=8"),
    "weights": (*WEIGHTS, *SUB_GROUPS),
    "weights through one buffer": (*WEIGHTS, f"{PARAM}.buffer_count=1"),
    "weights, some in memory": (*WEIGHTS, *SUB_GROUPS, f"{PARAM}.max_in_cpu=600000"),
    "weights, state in memory": (*WEIGHTS, f"{OPTIMIZER}.device=cpu", f"{OPTIMIZER}.cpu_adam=torch"),
    "weights that stay gathered": (*WEIGHTS, "engine.zero.stage3_max_reuse_distance=1000000000"),
    "both": BOTH,
    "both, pipelined": (*BOTH, *SUB_GROUPS, *PIPELINED),
    "both, fast_init": (*BOTH, *SUB_GROUPS, *FAST),
    "both, fast_init, pipelined": (*BOTH, *SUB_GROUPS, *FAST, *PIPELINED),
    "both, many micro-batches": (*BOTH, *SUB_GROUPS, *ACCUMULATED),
    "both, recompute": (*BOTH, *RECOMPUTE),
}
EVERY_COMMIT = {"both, fast_init, pipelined"}


@pytest.fixture(autouse=True)
def _async_io(monkeypatch):
    """Let the builder that DeepSpeed's accelerator has for async_io return the emulated one."""
    if os.environ.get("PRETRAIN_REAL_ASYNC_IO"):
        return
    bridge.install(CpuBackend())
    builder = importlib.import_module("deepspeed.accelerator").get_accelerator().get_op_builder("AsyncIOBuilder")
    monkeypatch.setattr(builder, "load", lambda self, verbose=False: emulated_async_io)
    monkeypatch.setitem(importlib.import_module("deepspeed.git_version_info").installed_ops, "async_io", True)


@pytest.fixture
def in_files(tmp_path):
    """Give a recipe's overrides a folder for its files."""

    def overrides(*options):
        (tmp_path / "nvme").mkdir(exist_ok=True)
        sections = [section for section in (OPTIMIZER, PARAM) if f"{section}.device=nvme" in options]
        return (*MODEL, *STAGE[3], *(f"{section}.nvme_path={tmp_path / 'nvme'}" for section in sections), *options)

    return overrides


def numbers(*overrides):
    """Train six steps, inspect the model in the middle; return losses, gradient norms, and the result."""
    with tiny.engine_of(tiny.tiny(*overrides)) as engine:
        curve = tiny.train(engine, 0, 4)
        seen = [
            tiny.held_out_loss(engine),
            engine.parameters_norm().item(),
            *engine.next_token_logits([1, 2, 3])[:5].tolist(),
            engine.parameters_norm().item(),
        ]
        curve += tiny.train(engine, 4, 6)
    return [number for step in curve for number in step] + seen


@cache
def uninterrupted():
    with tiny.engine_of(tiny.tiny(*MODEL)) as engine:
        return tiny.train(engine, 0, 6)


@cache
def on_megatron(*overrides):
    return numbers(*MODEL, *overrides)


@pytest.mark.parametrize(
    "case", [case if case in EVERY_COMMIT else pytest.param(case, marks=pytest.mark.full) for case in CASES]
)
def test_it_trains_as_the_megatron_engine_does(case, in_files):
    assert numbers(*in_files(*CASES[case])) == pytest.approx(on_megatron(), rel=1e-5, abs=1e-6)


def test_its_files_are_removed_with_the_training(in_files, tmp_path):
    with tiny.engine_of(tiny.tiny(*in_files(*BOTH, *SUB_GROUPS))) as engine:
        tiny.train(engine, 0, 1)
        matrices = [p for p in engine.model.parameters() if p.ds_numel >= 262_144]
        folder = tmp_path / "nvme" / "zero_stage_3"
        assert len(matrices) == 4
        assert len(list((folder / "float32params" / "rank0").iterdir())) == 4
        states = [file.name.split("-")[0] for file in (folder / "optimizer" / "rank0").iterdir() if "-" in file.name]
        assert states.count("exp_avg") == states.count("exp_avg_sq") == 4
    assert list((tmp_path / "nvme").iterdir()) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("both, pipelined", "fp32"),
        pytest.param("both, pipelined", "bf16", marks=pytest.mark.full),
        *(
            pytest.param(case, dtype, marks=pytest.mark.full)
            for case in ("state, written behind", "weights")
            for dtype in ("fp32", "bf16")
        ),
    ],
)
def test_a_stopped_run_resumes_bit_for_bit(case, dtype, in_files, tmp_path):
    recipe = tiny.tiny(*in_files(*CASES[case], *DTYPES[dtype]))
    with tiny.engine_of(recipe) as engine:
        tiny.train(engine, 0, 3)
        tiny.save(engine, tmp_path / "saved", 3)
        uninterrupted = tiny.train(engine, 3, 6)
        expected = engine.parameters_norm().item()
    with tiny.engine_of(recipe) as engine:
        tiny.train(engine, 7, 9)  # another state, which loading replaces
        tiny.held_out_loss(engine)  # weights are read ahead
        assert storage.load(engine, tmp_path / "saved", weights_only=False).notices == []
        assert tiny.train(engine, 3, 6) == uninterrupted
        assert engine.parameters_norm().item() == expected


@pytest.mark.full
@pytest.mark.parametrize("case", [pytest.param("state in sub-groups", marks=pytest.mark.full), "both, pipelined"])
def test_a_run_may_stop_before_its_first_step(case, in_files, tmp_path):
    recipe = tiny.tiny(*in_files(*CASES[case]))
    with tiny.engine_of(recipe) as engine:
        tiny.save(engine, tmp_path / "saved", 0)
        uninterrupted = tiny.train(engine, 0, 2)
    with tiny.engine_of(recipe) as engine:
        tiny.train(engine, 5, 8)
        storage.load(engine, tmp_path / "saved", weights_only=False)
        assert tiny.train(engine, 0, 2) == uninterrupted


ELSEWHERE = {"stage 3": STAGE[3], "stage 1": STAGE[1], "megatron": ()}


@pytest.mark.full
@pytest.mark.parametrize(
    "there", ["stage 3", *(pytest.param(name, marks=pytest.mark.full) for name in ("stage 1", "megatron"))]
)
def test_a_run_with_files_resumes_without_them_and_the_reverse(there, in_files, tmp_path):
    files, elsewhere = in_files(*BOTH, *SUB_GROUPS), (*MODEL, *ELSEWHERE[there])
    for number, (before, after) in enumerate([(files, elsewhere), (elsewhere, files)]):
        with tiny.engine_of(tiny.tiny(*before)) as engine:
            curve = tiny.train(engine, 0, 3)
            tiny.save(engine, tmp_path / f"saved {number}", 3)
        with tiny.engine_of(tiny.tiny(*after)) as engine:
            storage.load(engine, tmp_path / f"saved {number}", weights_only=False)
            curve += tiny.train(engine, 3, 6)
        assert_close(curve, uninterrupted(), 1e-5)


@pytest.mark.full
def test_weights_alone_start_a_new_run(in_files, tmp_path):
    with tiny.engine_of(tiny.tiny(*MODEL)) as engine:
        tiny.train(engine, 0, 3)
        tiny.save(engine, tmp_path / "saved", 3)
        weights = engine.parameters_norm().item()
    with tiny.engine_of(tiny.tiny(*in_files(*BOTH))) as engine:
        storage.load(engine, tmp_path / "saved", weights_only=True)
        assert engine.parameters_norm().item() == pytest.approx(weights, rel=1e-6)
        tiny.train(engine, 0, 1)  # with a learning rate of zero, main weights that were not loaded would show
        assert engine.parameters_norm().item() == pytest.approx(weights, rel=1e-6)


@pytest.mark.full
def test_a_skipped_step_changes_nothing(in_files):
    """And the next one, at a smaller scale, uses its own gradients."""

    def steps(*overrides):
        with tiny.engine_of(tiny.tiny(*overrides, *FP16)) as engine:
            taken = [tiny.take_step(engine, iteration) for iteration in range(6)]
            return [(step.skipped, step.loss.item()) for step in taken], engine.parameters_norm().item()

    ours, norm = steps(*in_files(*BOTH, *SUB_GROUPS, *PIPELINED))
    theirs, expected = steps(*MODEL)
    assert [skipped for skipped, _ in ours] == [skipped for skipped, _ in theirs]
    assert {skipped for skipped, _ in ours} == {True, False}
    assert [loss for _, loss in ours] == pytest.approx([loss for _, loss in theirs], rel=1e-3)
    assert norm == pytest.approx(expected, rel=1e-4)


@pytest.mark.full
def test_in_bf16_it_trains_as_the_megatron_engine_does(in_files):
    ours = numbers(*in_files(*BOTH, *DTYPES["bf16"], *SUB_GROUPS))
    assert ours == pytest.approx(on_megatron(*DTYPES["bf16"]), rel=5e-3, abs=5e-3)
