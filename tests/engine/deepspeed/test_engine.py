"""The DeepSpeed engine in one process: what it has in common with the megatron engine, and what ZeRO could break."""

from __future__ import annotations

import gc
import importlib
import weakref
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from engine import tiny
from engine.layouts import ACCUMULATED, OFFLOAD, OFFLOAD_ALL, STAGE
from pretrain.checkpoint import storage
from pretrain.errors import CheckpointError
from pretrain.model import weights

FULL = pytest.mark.full
SMALL = ("model.num_layers=2",)
DROPOUT = ("model.hidden_dropout=0.1", "model.attention_dropout=0.1")
EVERY_STAGE = pytest.mark.parametrize("stage", [0, 1, pytest.param(2, marks=FULL), 3])
SPLIT_STAGE = pytest.mark.parametrize("stage", [1, pytest.param(2, marks=FULL), 3])
ODD_STAGE = pytest.mark.parametrize("stage", [pytest.param(0, marks=FULL), 1, pytest.param(2, marks=FULL), 3])
EVEN_STAGE = pytest.mark.parametrize("stage", [0, pytest.param(1, marks=FULL), 2, pytest.param(3, marks=FULL)])
"""In `make test-all` all four; one rank takes the same way at stages 1 and 2."""
FP16 = ("precision.dtype=fp16", "precision.loss_scale_window=2", "precision.hysteresis=2")


def steps(*overrides, iterations=6):
    """Take steps; return of each its loss, its gradient norm, whether it was skipped, and the loss scale after it."""
    with tiny.engine_of(tiny.tiny(*SMALL, *overrides)) as engine:
        return [tell(tiny.take_step(engine, iteration), engine) for iteration in range(iterations)]


def tell(step, engine):
    return step.loss.item(), None if step.skipped else step.grad_norm.item(), step.skipped, engine.loss_scale


@pytest.mark.parametrize(
    ("scale", "stage"),
    [
        *((2.0**40, 1), (1024.0, 2), (2.0**40, 3)),
        *(pytest.param(scale, stage, marks=FULL) for scale, stage in ((1024.0, 1), (2.0**40, 2), (1024.0, 3))),
    ],
)
def test_the_loss_scale_moves_as_the_megatron_engines_and_changes_no_gradient(scale, stage):
    overrides = (*FP16, f"precision.initial_loss_scale={scale}", "optimizer.clip_grad=0.0")
    ours, theirs = steps(*STAGE[stage], *overrides, iterations=8), steps(*overrides, iterations=8)
    assert [step[2:] for step in ours] == [step[2:] for step in theirs]
    assert [step[0] for step in ours] == pytest.approx([step[0] for step in theirs], rel=1e-5)
    assert [step[1] for step in ours] == [norm and pytest.approx(norm, rel=1e-3) for _, norm, *_ in theirs]
    assert len({step[3] for step in ours}) > 1


@SPLIT_STAGE
def test_steps_that_overflow_at_the_smallest_scale_are_skipped(stage):
    overrides = ("precision.initial_loss_scale=1099511627776", "precision.min_loss_scale=549755813888")
    taken = steps(*STAGE[stage], "precision.dtype=fp16", "precision.hysteresis=1", *overrides, iterations=3)
    assert [(skipped, scale) for *_, skipped, scale in taken] == [(True, 2.0**39)] * 3


@SPLIT_STAGE
def test_a_skipped_step_changes_nothing(stage):
    with tiny.engine_of(tiny.tiny(*SMALL, *STAGE[stage], *FP16, "precision.initial_loss_scale=1.0e+12")) as engine:
        before = engine.learning_rate, engine.parameters_norm().item(), engine.state.counters()["step"]
        assert tiny.take_step(engine, 0).skipped
        assert (engine.learning_rate, engine.parameters_norm().item(), engine.state.counters()["step"]) == before


@EVERY_STAGE
def test_a_stopped_run_resumes_bit_for_bit(stage, tmp_path):
    goes_on(tiny.tiny(*SMALL, *DROPOUT, *STAGE[stage]), tmp_path / "saved")


@pytest.mark.parametrize("stage", [pytest.param(1, marks=FULL), 2, 3])
def test_a_stopped_run_with_offload_resumes_bit_for_bit(stage, tmp_path):
    goes_on(tiny.tiny(*SMALL, *DROPOUT, *STAGE[stage], *(OFFLOAD if stage < 3 else OFFLOAD_ALL)), tmp_path / "saved")


@pytest.mark.parametrize(
    ("dtype", "stage"),
    [
        *(("bf16", 3), ("fp16", 1), ("bf16", 2)),
        *(pytest.param(dtype, stage, marks=FULL) for dtype, stage in (("fp16", 3), ("bf16", 1), ("fp16", 2))),
    ],
)
def test_an_fp16_or_bf16_run_resumes_bit_for_bit(dtype, stage, tmp_path):
    scale = (*FP16, "precision.initial_loss_scale=1024") if dtype == "fp16" else ()
    goes_on(tiny.tiny(*SMALL, *DROPOUT, *STAGE[stage], f"precision.dtype={dtype}", *scale), tmp_path / "saved")


def goes_on(recipe, directory):
    """Check that a resumed run is the uninterrupted one."""
    with tiny.engine_of(recipe) as engine:
        tiny.train(engine, 0, 3)
        tiny.save(engine, directory, 3)
        uninterrupted = tiny.train(engine, 3, 6)
        expected = engine.loss_scale, engine.learning_rate, engine.parameters_norm().item()
    with tiny.engine_of(recipe) as engine:
        torch.rand(7)  # generators are elsewhere
        assert storage.load(engine, directory, weights_only=False).notices == []
        assert tiny.train(engine, 3, 6) == uninterrupted
        assert (engine.loss_scale, engine.learning_rate, engine.parameters_norm().item()) == expected


@pytest.mark.full
@ODD_STAGE
def test_a_run_may_stop_before_its_first_step(stage, tmp_path):
    recipe = tiny.tiny(*SMALL, *STAGE[stage])
    with tiny.engine_of(recipe) as engine:
        tiny.save(engine, tmp_path / "saved", 0)
        uninterrupted = tiny.train(engine, 0, 2)
    with tiny.engine_of(recipe) as engine:
        tiny.train(engine, 5, 8)  # another state, which loading replaces
        storage.load(engine, tmp_path / "saved", weights_only=False)
        assert tiny.train(engine, 0, 2) == uninterrupted


@EVEN_STAGE
def test_weights_alone_start_a_new_run(stage, tmp_path):
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        tiny.train(engine, 0, 3)
        tiny.save(engine, tmp_path / "saved", 3)
        weights = engine.parameters_norm().item()
    with tiny.engine_of(tiny.tiny(*SMALL, *STAGE[stage])) as engine:
        storage.load(engine, tmp_path / "saved", weights_only=True)
        assert engine.parameters_norm().item() == pytest.approx(weights, rel=1e-6)
        tiny.train(engine, 0, 1)  # with a learning rate of zero, main weights that were not loaded would show
        assert engine.parameters_norm().item() == pytest.approx(weights, rel=1e-6)
        assert engine.state.counters()["step"] == 1


@pytest.mark.full
def test_another_model_is_refused(tmp_path):
    with tiny.engine_of(tiny.tiny(*SMALL, *STAGE[3])) as engine:
        tiny.save(engine, tmp_path / "saved", 0)
    with tiny.engine_of(tiny.tiny(*STAGE[3])) as engine, pytest.raises(CheckpointError, match="num_layers 2"):
        storage.load(engine, tmp_path / "saved", weights_only=False)


@ODD_STAGE
def test_evaluation_does_not_affect_the_training(stage):
    recipe = tiny.tiny(*SMALL, *DROPOUT, *STAGE[stage])
    with tiny.engine_of(recipe) as engine:
        undisturbed = tiny.train(engine, 0, 4)
    with tiny.engine_of(recipe) as engine:
        disturbed = tiny.train(engine, 0, 2)
        tiny.held_out_loss(engine)
        engine.next_token_logits([1, 2, 3])
        engine.parameters_norm()
        disturbed += tiny.train(engine, 2, 4)
    assert disturbed == undisturbed


@pytest.mark.full
@EVEN_STAGE
def test_the_batch_may_grow_between_steps(stage):
    def losses(*overrides):
        with tiny.engine_of(tiny.tiny(*SMALL, *ACCUMULATED, *overrides)) as engine:
            curve = []
            for iteration, micro_batches in enumerate((8, 2, 2, 5, 8)):
                step = engine.train_step(tiny.micro_batches(engine.recipe, iteration), micro_batches)
                engine.advance_schedule(micro_batches)
                curve.append((step.loss.item(), step.grad_norm.item()))
            return curve

    for ours, theirs in zip(losses(*STAGE[stage]), losses(), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_stage_3_never_holds_more_than_one_whole_weight_while_it_builds(monkeypatch):
    held = []

    def initialize(model, recipe, vocab_size, rank, whole):
        @contextmanager
        def watched(parameter):
            with whole(parameter):
                held.append((parameter.numel(), sum(other.numel() for other in model.parameters())))
                yield

        held.append((0, sum(parameter.numel() for parameter in model.parameters())))
        weights.initialize(model, recipe, vocab_size, rank, watched)

    monkeypatch.setattr("pretrain.model.build.initialize", initialize)
    with tiny.engine_of(tiny.tiny(*STAGE[3])) as engine:
        assert sum(parameter.ds_numel for parameter in engine.model.parameters()) > 200_000
    assert len(held) > 50
    assert all(whole == held_together for whole, held_together in held)


@ODD_STAGE
def test_padding_of_the_vocabulary_stays_zero(stage, tmp_path):
    with tiny.engine_of(tiny.tiny(*SMALL, *STAGE[stage])) as engine:
        tiny.train(engine, 0, 3)
        tiny.save(engine, tmp_path / "saved", 3)
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        storage.load(engine, tmp_path / "saved", weights_only=False)
        embedding = dict(engine.chunks[0].module.named_parameters())["embedding.word_embeddings.weight"]
        assert embedding[: tiny.VOCAB_SIZE].abs().min(dim=1).values.max() > 0
        assert not embedding[tiny.VOCAB_SIZE :].any()


def test_adam_without_decoupled_weight_decay():
    overrides = ("optimizer.name=adam", "optimizer.weight_decay=0.1")
    ours, theirs = steps(*STAGE[1], *overrides), steps(*overrides)
    assert [step[0] for step in ours] == pytest.approx([step[0] for step in theirs], rel=1e-5)


@EVERY_STAGE
@pytest.mark.parametrize("clip", [0.01, pytest.param(0.0, marks=FULL)])
def test_clipping_bounds_the_update_but_not_the_reported_norm(stage, clip):
    ours = steps(*STAGE[stage], f"optimizer.clip_grad={clip}")
    theirs = steps(f"optimizer.clip_grad={clip}")
    assert [step[0] for step in ours] == pytest.approx([step[0] for step in theirs], rel=1e-5)
    assert [step[1] for step in ours] == pytest.approx([step[1] for step in theirs], rel=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    ("dtype", "stage"),
    [
        *(("bf16", 0), ("fp32", 1), ("bf16", 2), ("fp32", 3)),
        *(
            pytest.param(dtype, stage, marks=FULL)
            for dtype, stage in (("fp32", 0), ("bf16", 1), ("fp32", 2), ("bf16", 3))
        ),
    ],
)
def test_no_step_waits_for_the_device_by_itself(dtype, stage, monkeypatch):
    waits = []
    sums = ("precision.grad_reduce_in_fp32=false",) if dtype == "bf16" and stage == 0 else ()
    with tiny.engine_of(tiny.tiny(*SMALL, *STAGE[stage], f"precision.dtype={dtype}", *sums)) as engine:
        accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
        monkeypatch.setattr(accelerator, "synchronize", lambda *_: waits.append("synchronize"), raising=False)
        tiny.train(engine, 0, 4)
        tiny.held_out_loss(engine)
        assert waits == []


def test_the_norm_of_weights_in_host_memory_is_summed_on_the_device(monkeypatch):
    summed = []
    with tiny.engine_of(tiny.tiny(*SMALL, *STAGE[3], *OFFLOAD_ALL)) as engine:
        monkeypatch.setattr(engine, "_device", torch.device("meta"))  # any other than the host
        monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: summed.append(tensor.device.type))
        engine.parameters_norm()
    assert summed == ["meta", "meta"]


def test_torchs_linear_stays_torchs(monkeypatch):
    linear = torch._C._nn.linear
    monkeypatch.setattr(torch.nn.functional, "linear", linear)  # independent of earlier tests in this process
    with tiny.engine_of(tiny.tiny(*SMALL, *STAGE[3])) as engine:
        tiny.train(engine, 0, 2)
        assert torch.nn.functional.linear is linear


@pytest.mark.full
def test_stage_3_in_bf16_rounds_as_without_zero():
    def losses(*overrides):
        with tiny.engine_of(tiny.tiny(*SMALL, "precision.dtype=bf16", *overrides)) as engine:
            return [tiny.take_step(engine, iteration).loss.item() for iteration in range(4)]

    # A weight that is rounded otherwise shows by more; sums of a loss may end in another last place of fp32.
    assert losses(*STAGE[3]) == pytest.approx(losses(*STAGE[2]), rel=5e-7)


@EVERY_STAGE
def test_a_closed_engine_is_garbage_collected(stage):
    """DeepSpeed's hooks are held by C++ objects, which Python's garbage collector does not traverse."""
    with tiny.engine_of(tiny.tiny(*SMALL, *STAGE[stage])) as engine:
        tiny.take_step(engine, 0)
        model = weakref.ref(engine.model)
    del engine
    gc.collect()
    assert model() is None
