"""Passes are captured as a graph where the device has graphs. CUDA's own were not run: a fake module is used."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from structure.sources import ROOT

CPU = torch.device("cpu")


@pytest.fixture
def device_time(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.gpu import device_time

    return device_time


@pytest.fixture
def module(monkeypatch, device_time):
    """torch.cuda's names; a graph keeps how many calls were made while it was captured."""
    calls = []

    @contextmanager
    def graph(made):
        before = len(calls)
        yield
        made.captured = len(calls) - before

    class Graph:
        replays = 0

        def replay(self):
            Graph.replays += 1

    stream = SimpleNamespace(wait_stream=lambda other: None)
    module = SimpleNamespace(
        CUDAGraph=Graph,
        graph=graph,
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda _: nullcontext(),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    return SimpleNamespace(calls=calls, Graph=Graph)


def test_a_replay_is_timed_and_no_call_is_made_for_it(device_time, module):
    seconds, how = device_time.timer(lambda: module.calls.append(1), CPU)
    assert how == "graph"
    made = len(module.calls)
    assert made == device_time.WARM_UP + device_time.PASSES
    assert seconds() > 0
    assert (module.Graph.replays, len(module.calls)) == (1, made)


def test_calls_that_cannot_be_captured_are_launched_and_reported(device_time, module):
    def call():
        module.calls.append(1)
        if len(module.calls) == device_time.WARM_UP + 1:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    seconds, how = device_time.timer(call, CPU)
    assert how == "launched one by one: operation not permitted when stream is capturing"
    made = len(module.calls)
    seconds()
    assert len(module.calls) == made + device_time.PASSES


def test_a_device_without_graphs(device_time):
    assert device_time.captured(lambda: None, CPU) == (None, "launched one by one: cpu has no graphs")


def test_attention_counts_seven_products_of_half_the_square(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.gpu.gpu_attention import flops

    request = SimpleNamespace(micro_batch_size=2, heads=16, seq_length=2048, head_size=64)
    papers = 3.5 * 4 * 2048**2 * 64 * 16 * 2 / 2
    assert flops(request) == pytest.approx(papers, rel=1e-3)
