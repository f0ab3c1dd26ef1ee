"""Attention and its softmax are compared whole, or in a part from all over them."""

from __future__ import annotations

import pytest
import torch

from pretrain.tools.doctor import trials
from pretrain.tools.doctor.finding import Verdict
from tools.doctor.tried import CPU, reference, trial_of, wrong_in

WIDE = ("model.num_attention_heads=8", "train.micro_batch_size=5", "train.global_batch_size=5")
GROUPED = ("model.position_embedding_type=rope", "model.num_query_groups=4")
LENGTH, BATCH, HEADS = 32, 5, 8


@pytest.fixture(params=[2**23, 3000], ids=["whole", "part"])
def elements(request, monkeypatch):
    monkeypatch.setattr(trials, "ORACLE_ELEMENTS", request.param)
    return request.param


def shown(operation, places):
    """Return a mask of [s, b, n] in the layout of the operation's output."""
    if operation == "softmax":
        return places.permute(1, 2, 0)[..., None]
    return places.repeat_interleave(64 // HEADS, dim=2)


PLACES = {
    "even sequences": (slice(None), slice(0, None, 2)),
    "odd sequences": (slice(None), slice(1, None, 2)),
    "even heads": (slice(None), slice(None), slice(0, None, 2)),
    "odd heads": (slice(None), slice(None), slice(1, None, 2)),
    "early queries": (slice(0, LENGTH // 4),),
    "middle queries": (slice(LENGTH // 3, 2 * LENGTH // 3),),
    "late queries": (slice(3 * LENGTH // 4, None),),
}


@pytest.mark.parametrize(
    ("operation", "overrides"),
    [
        ("attention", ()),
        ("softmax", ()),
        ("attention", GROUPED),
        ("softmax", GROUPED),
        ("attention", ("data.reset_attention_mask=true",)),
    ],
)
def test_a_kernel_that_is_wrong_in_some_places_is_found(elements, operation, overrides):
    request, trial = trial_of(operation, *WIDE, *overrides)
    built = reference(request)
    assert wrong_in(trial, built) == []
    for name, index in PLACES.items():
        places = torch.zeros(LENGTH, BATCH, HEADS, dtype=torch.bool)
        places[index] = True
        factor = torch.where(shown(operation, places), 1.1, 1.0)
        assert "output" in wrong_in(trial, lambda factor=factor, **given: built(**given) * factor), name


def test_the_line_says_what_is_compared(monkeypatch):
    assert trial_of("attention", *WIDE)[1].sizes == "s 32, b 5, 8 heads of 8"
    monkeypatch.setattr(trials, "ORACLE_ELEMENTS", 3000)
    assert trial_of("attention", *WIDE, *GROUPED)[1].sizes == (
        "s 32, b 5, 8 heads of 8; compared: 3 of 5 sequences, 6 of 8 heads, 3 of 32 queries"
    )
    assert trial_of("softmax", *WIDE)[1].sizes.endswith("3 of 5 sequences, 3 of 8 heads, 9 of 32 queries")


@pytest.mark.parametrize("operation", ["attention", "softmax"])
def test_late_queries_are_not_lost_beside_the_first_ones_large_entries(operation):
    request, trial = trial_of(operation, "precision.dtype=bf16", "model.seq_length=512")
    built = reference(request)
    late = torch.arange(512) >= 256
    factor = torch.where(late[:, None, None] if operation == "attention" else late[:, None], 0.5, 1.0).bfloat16()
    found = trial.deviations(lambda **given: built(**given) * factor, CPU)
    assert found[0].verdict is Verdict.WRONG
    assert {each.verdict for each in trial.deviations(built, CPU)} == {Verdict.OK}
