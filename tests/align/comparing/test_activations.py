"""Comparison of activations; tensors of one side alone are listed."""

from pretrain.align.comparing.activations import _not_compared, _uneven
from pretrain.align.model_place import Place
from pretrain.align.reading.points import PointName


def point(name, call=0, operation="bias_dropout_add"):
    return PointName(1, name != "output", Place(3, ""), operation, call, name)


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

    assert _not_compared(ours, theirs, uneven) == ["bias_dropout_add in the layer, which only one side calls like this"]
