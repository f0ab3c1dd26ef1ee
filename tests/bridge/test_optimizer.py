"""megatron-core's optimizer with the bridge: clipping and norm stay on the device, a sticky overflow skips a step."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.optimizer.optimizer import MixedPrecisionOptimizer
from torch import nn

from engine import tiny
from pretrain.bridge.megatron.optimizer import _sum_gradients, clip_by_norm, copy_tensors
from pretrain.cpu.backend import CpuBackend
from pretrain.model.weights import partial_gradients

finalize = import_module("megatron.core.distributed.finalize_model_grads")


class StickyFlag:
    """An overflow flag that the test sets during a step."""

    def __init__(self):
        self.flag = torch.zeros(())
        self.cleared = 0

    def clear(self):
        self.cleared += 1
        self.flag = torch.zeros(())

    def read(self):
        return self.flag


@pytest.fixture
def overflow(monkeypatch):
    """The cpu backend has a sticky overflow flag; megatron-core's class is put back afterwards."""
    flag = StickyFlag()
    monkeypatch.setattr(CpuBackend, "overflow", lambda self: flag)
    check = MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan
    monkeypatch.setattr(MixedPrecisionOptimizer, "_unscale_main_grads_and_check_for_nan", check)
    return flag


def gradients(scale, shapes=((3, 5), (7,), ())):
    generator = torch.Generator().manual_seed(3)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
    return parameters


@given(scale=st.floats(1e-6, 1e6), max_norm=st.floats(1e-3, 1e3))
def test_clipping_is_torchs(scale, max_norm):
    mine, torchs = gradients(scale), gradients(scale)
    norm = torch.nn.utils.clip_grad_norm_(torchs, max_norm)
    clip_by_norm(mine, max_norm, norm)
    for parameter, expected in zip(mine, torchs, strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-6, atol=0)


def test_clipping_never_waits_for_the_device():
    parameters = [torch.nn.Parameter(torch.zeros(4, device="meta"))]  # a value of meta cannot be read on the host
    parameters[0].grad = torch.zeros(4, device="meta")
    clip_by_norm(parameters, 1.0, torch.zeros((), device="meta"))


def test_parameters_without_gradient_are_skipped():
    parameter = torch.nn.Parameter(torch.ones(2))
    clip_by_norm([parameter], 1.0, torch.tensor(10.0))
    assert parameter.grad is None


def test_copies_change_the_dtype():
    to = [torch.empty(2, dtype=torch.bfloat16), torch.empty(3)]
    copy_tensors([torch.ones(2), torch.full((3,), 2.0, dtype=torch.bfloat16)], to)
    assert [tensor.tolist() for tensor in to] == [[1, 1], [2, 2, 2]]
    copy_tensors([], [])


def fp16(*overrides):
    return tiny.tiny("precision.dtype=fp16", "precision.initial_loss_scale=1024", *overrides)


@pytest.mark.parametrize("zero1", ["true", "false"])
def test_a_sticky_overflow_skips_only_its_step(overflow, monkeypatch, zero1):
    recipe = fp16("precision.hysteresis=1", f"parallel.use_distributed_optimizer={zero1}")
    with tiny.engine_of(recipe) as engine:
        backward_overflows_in(engine, overflow, {2})
        seen = []
        for iteration in range(4):
            weights = engine.parameters_norm().item()
            step = tiny.take_step(engine, iteration)
            seen.append((step.skipped, engine.parameters_norm().item() == weights, engine.loss_scale))
        assert overflow.cleared == 4
    # The first step has no learning rate yet (warm-up), so weights stay although it is not skipped.
    assert seen == [(False, True, 1024), (False, False, 1024), (True, True, 512), (False, False, 512)]


def backward_overflows_in(engine, overflow, iterations):
    """Set the flag within the forward and backward passes of these train steps, counted from 0."""
    run, count = engine._run, iter(range(1000))

    def run_and_overflow(*args, **kwargs):
        losses = run(*args, **kwargs)
        if next(count) in iterations:
            overflow.flag = torch.ones(())
        return losses

    engine._run = run_and_overflow


def test_only_fp16_looks_at_the_flag(overflow):
    with tiny.engine_of(tiny.tiny("precision.dtype=bf16")) as engine:
        backward_overflows_in(engine, overflow, {0})
        assert not tiny.take_step(engine, 0).skipped
        assert overflow.cleared == 0


def test_partial_gradients_are_summed_as_by_megatron_core(monkeypatch):
    """The bits of megatron-core's own function, which stays under its old name, for the weights that it knows."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda total, **_: total.mul_(3))
    monkeypatch.setattr(finalize, "get_tensor_model_parallel_group_if_none", lambda group: group)
    group = SimpleNamespace(size=lambda: 2)
    results = []
    for sum_gradients in (finalize._allreduce_layernorm_grads, partial(_sum_gradients, partial_gradients)):
        generator = torch.Generator().manual_seed(0)
        chunk = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 7), nn.LayerNorm(7))
        chunk.ddp_config = SimpleNamespace(use_megatron_fsdp=False)
        for weight in chunk.parameters():
            weight.sequence_parallel = weight.ndim == 1
            weight.main_grad = torch.randn(weight.shape, generator=generator)
        sum_gradients([chunk], SimpleNamespace(sequence_parallel=True, qk_layernorm=False), group)
        results.append([weight.main_grad for weight in chunk.parameters()])
    assert all(torch.equal(theirs, ours) for theirs, ours in zip(*results, strict=True))
