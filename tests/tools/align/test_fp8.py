"""Trainings in fp8: kernels are checked to a thousandth, and layouts differ by less than two roundings to fp8."""

import shutil

import pytest
import torch

from engine.layouts import BF16, GPT2, PP, QWEN3_AND_2, SP, STAGE, TP, ZERO1
from pretrain.conformance.examples import linear
from pretrain.conformance.tensor_error import TensorError
from pretrain.plugins.requests import QUANTIZATIONS
from pretrain.tools.align.comparing.recording import Recording
from pretrain.tools.align.outcome_views import headline, outcome_text
from pretrain.tools.align.recording.call_check import _judged_as
from tools.align.ranks import record_on_ranks
from tools.align.recorded import QKV, SMALL, change_tensor, outcome_of, record
from tools.align.test_wrong_kernels import assert_named, name
from tools.align.wrong_kernels import Mistake

ROWWISE, TENSORWISE = (f"precision.fp8={kind}" for kind in ("rowwise", "tensorwise"))
LAYOUTS = {"TP": TP, "TP SP": (*TP, *SP), "PP": PP, "DP": (), "DP ZeRO 1": ZERO1, "ZeRO 1": STAGE[1]}
MODELS = {"gpt2": GPT2, "qwen": QWEN3_AND_2}

MISTAKES = [
    Mistake("linear", "output", call=2, part="unrounded"),
    *(Mistake("linear", what) for what in ("output", "x", "weight", "bias")),
    Mistake("linear", "output", call=3, part="token"),
    Mistake("attention", "query"),
    Mistake("norm", "output"),
]


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """A recording without a mistake."""
    return record(tmp_path_factory.mktemp("right"), *SMALL, ROWWISE)


@pytest.mark.full
@pytest.mark.parametrize("mistake", MISTAKES, ids=name)
def test_a_wrong_kernel_is_named(mistake, right, tmp_path):
    assert_named(mistake, outcome_of(right, record(tmp_path / "wrong", *SMALL, ROWWISE, mistake=mistake)))


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_no_right_call_is_blamed(kind, tmp_path):
    wide = ("model.num_layers=1", "model.hidden_size=128", "model.num_attention_heads=1")
    folder = record(tmp_path / "recorded", *wide, f"precision.fp8={kind}")

    outcome = outcome_of(folder, folder)

    assert outcome.is_aligned
    assert not outcome.alike
    text = outcome_text(outcome, [Recording.open(folder)] * 2)
    assert f"aligned: nothing differs by more than fp32 with {kind} fp8 explains" in text


def test_a_sum_of_14_bits_is_right_in_fp8_alone():
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    error = TensorError.of((exact * (1 + 2.0**-12)).float(), exact)
    assert error.is_small(_judged_as(linear(quantization="rowwise")))
    assert not error.is_small(_judged_as(linear()))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("dtype", [(), BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", [ROWWISE, TENSORWISE])
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_of_two_ranks(model, kind, dtype, tmp_path):
    given = (*MODELS[model], kind, *dtype)
    record_on_ranks(tmp_path, 2, {case: (*given, *layout) for case, layout in LAYOUTS.items()}, steps=3)

    whole = record(tmp_path / "whole", *given, steps=3)
    for case in LAYOUTS:
        outcome = outcome_of(whole, tmp_path / case)
        assert outcome.is_aligned, (case, outcome.first, outcome.cause)
        assert max(each.share for each in outcome.compared) < 0.7


@pytest.mark.full
@pytest.mark.parametrize("lost", ["a rank's half of the features", "one token"])
def test_what_is_lost_between_kernels_is_found_at_its_place(lost, tmp_path):
    usual = record(tmp_path / "usual", ROWWISE)
    copy = shutil.copytree(usual, tmp_path / "copy")

    def lose(x):
        x[(5, 1) if lost == "one token" else (..., slice(x.shape[-1] // 2))] = 0
        return x

    change_tensor(copy, lose, **QKV)
    outcome = outcome_of(usual, copy)

    assert outcome.cause is None
    lines = headline(outcome, [Recording.open(usual), Recording.open(copy)])
    assert lines[0].startswith(
        "differs at step 1, layer 2 of 4, forward: output of linear in self_attention.linear_qkv"
    )
