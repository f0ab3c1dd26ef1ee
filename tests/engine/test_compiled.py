"""Compiled layers train as those that are not, at every layout that takes them."""

from __future__ import annotations

import pytest
import torch

from engine import ranks, tiny
from engine.comparison import assert_close, check
from engine.layouts import COMPILE, COMPILED, GPT2, LLAMA, NEOX, SAVED_AT, Case
from pretrain.model import compiled


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return ranks.run("COMPILED", 2, tmp_path_factory.mktemp("compiled"), program="engine.compiled_rank")


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("name", COMPILED)
def test_two_ranks_train_as_one_that_compiles_nothing(name, two_ranks):
    check(two_ranks[name], COMPILED[name])


@pytest.mark.full
@pytest.mark.parametrize(
    "model", [pytest.param(GPT2, id="gpt2"), pytest.param(NEOX, id="neox"), pytest.param(LLAMA, id="llama")]
)
def test_the_real_compiler_gives_the_same_numbers(model):
    case = Case(model, COMPILE, last=SAVED_AT)
    check(tiny.run(case, folder=None), case)


@pytest.mark.full
def test_one_layer_is_compiled_for_all_and_computes_the_same(monkeypatch):
    """torch compiles a function at most eight times, and then silently runs it uncompiled."""
    monkeypatch.setattr(compiled, "BACKEND", "eager")

    def graphs(layers):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = (*LLAMA, f"model.num_layers={layers}")
        assert_close(tiny.curve(*model, *COMPILE, iterations=2), tiny.curve(*model, iterations=2), 1e-6)
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    assert 0 < graphs(2) == graphs(12)


@pytest.mark.full
def test_a_checkpoint_does_not_depend_on_compilation(monkeypatch):
    monkeypatch.setattr(compiled, "BACKEND", "eager")

    def names(*overrides):
        with tiny.engine_of(tiny.tiny(*overrides)) as engine:
            return [name for chunk in engine.chunks for name in chunk.state_dict()]

    assert names(*COMPILE) == names()
