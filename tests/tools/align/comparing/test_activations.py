"""Comparison of activations; tensors of one side alone are listed."""

from types import SimpleNamespace

import torch

from pretrain.tools.align.comparing.compare import _not_compared, _uneven, compare_activations
from pretrain.tools.align.comparing.distance import Explained
from pretrain.tools.align.comparing.recording import PointName
from pretrain.tools.align.recording.folder import ModulePlace


def point(name, call=0, operation="bias_dropout_add"):
    return PointName(1, name != "output", ModulePlace(3, ""), operation, call, name)


def test_a_gradient_that_one_side_lacks_is_listed_and_the_others_are_compared():
    ours = [point("output"), point("x"), point("residual")]
    theirs = [point("output"), point("x")]

    assert not _uneven(ours, theirs)
    assert _not_compared(ours, theirs, []) == [
        "bias_dropout_add's gradient of residual: only one side has it",
    ]


def test_an_operation_that_one_side_calls_more_often_is_listed_once():
    ours = [point("output"), point("output", call=1), point("x")]
    theirs = [point("output"), point("x")]

    uneven = _uneven(ours, theirs)

    assert _not_compared(ours, theirs, uneven) == ["bias_dropout_add in the layer: the sides make different calls"]


def test_gradients_that_overflowed_in_a_skipped_step_are_not_compared():
    side = SimpleNamespace(
        order=lambda: {point("output"): 1, point("x"): 2}, parts=lambda _: [[torch.full((1, 1), torch.inf)]]
    )

    compared, skipped = compare_activations(side, side, lambda _: Explained(dtype="fp16", layers=4), overflowed={1})

    assert [each.what for each in compared] == ["output of bias_dropout_add"]
    assert not skipped
