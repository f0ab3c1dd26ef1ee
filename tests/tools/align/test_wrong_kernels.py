"""A kernel that is wrong in layer 7 of 12 alone is named as exactly that."""

import pytest

from engine.layouts import BF16
from pretrain.plugins.host.manager import KERNEL_HOOKS
from pretrain.tools.align.comparing.outcome import BACKWARD, FORWARD, NORM, UPDATE
from pretrain.tools.align.comparing.recording import Recording
from pretrain.tools.align.outcome_views import headline
from pretrain.tools.align.recording.taps import ARGUMENTS
from tools.align.recorded import SMALL, outcome_of, record
from tools.align.wrong_kernels import Mistake

MODULES = {
    ("norm", 0): "input_layernorm",
    ("norm", 1): "pre_mlp_layernorm",
    ("linear", 0): "self_attention.linear_qkv",
    ("linear", 1): "self_attention.linear_proj",
    ("linear", 2): "mlp.linear_fc1",
    ("linear", 3): "mlp.linear_fc2",
}
"""Operation and number of its call in a layer -> the module."""

MISTAKES = [
    Mistake("linear", "output", call=2),
    Mistake("optimizer", "update"),
    Mistake("norm", "weight"),
    Mistake("softmax", "scores"),
    Mistake("cross_entropy", "logits", layer=None),
    *(Mistake("norm", what, call=1) for what in ("output", "x", "bias")),
    *(Mistake("attention", what) for what in ("output", "query", "key", "value")),
    Mistake("softmax", "output"),
    Mistake("rotary", "output"),
    Mistake("rotary", "x", call=1),
    *(Mistake("activation", what) for what in ("output", "x", "bias")),
    *(Mistake("bias_dropout_add", what) for what in ("output", "x", "bias", "residual")),
    Mistake("bias_dropout_add", "output", call=1),
    Mistake("cross_entropy", "output", layer=None),
    *(Mistake("linear", what) for what in ("x", "weight", "bias")),
    *(Mistake("linear", what, call=call) for what in ("output", "weight") for call in (1, 3)),
    Mistake("optimizer", "weight decay"),
    Mistake("optimizer", "gradient norm", layer=None),
    Mistake("norm", "output", part="epsilon"),
    Mistake("softmax", "output", part="mask"),
    Mistake("attention", "output", part="token"),
    Mistake("linear", "x", part="token"),
]

OF_EXPERTS = [
    Mistake("grouped_linear", "output", call=1),
    *(Mistake("grouped_linear", what) for what in ("x", "weight")),
    *(Mistake("router", what) for what in ("output", "logits")),
]

IN_BF16 = [
    *(Mistake("attention", what) for what in ("output", "query")),
    Mistake("norm", "x"),
    Mistake("norm", "output", call=1),
    Mistake("softmax", "output"),
    Mistake("rotary", "x", call=1),
    Mistake("activation", "x"),
    Mistake("bias_dropout_add", "residual"),
    Mistake("cross_entropy", "logits", layer=None),
    Mistake("linear", "weight"),
    Mistake("linear", "output", call=3),
    Mistake("attention", "output", part="head's features"),
    Mistake("attention", "key", part="head"),
    Mistake("attention", "output", part="last position"),
    Mistake("rotary", "x", part="head"),
    Mistake("norm", "output", part="last position"),
    Mistake("softmax", "output", part="mask"),
]
IN_STEP_2 = [
    Mistake("norm", "output", since=1),
    Mistake("attention", "query", since=1),
]
LOST = [
    Mistake("norm", "x", is_lost=True),
    Mistake("attention", "key", is_lost=True),
    Mistake("linear", "weight", is_lost=True),
    Mistake("bias_dropout_add", "residual", call=1, is_lost=True),
]


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """A recording without a mistake."""
    return record(tmp_path_factory.mktemp("right"), *SMALL)


@pytest.fixture(scope="module")
def right_in_bf16(tmp_path_factory):
    """The same in bf16."""
    return record(tmp_path_factory.mktemp("right"), *SMALL, *BF16)


def name(mistake):
    return f"{mistake.operation}-{mistake.what}-{mistake.call}-{mistake.part}"


@pytest.mark.full
@pytest.mark.parametrize(
    "mistake",
    MISTAKES,
    ids=name,
)
def test_it_is_named(mistake, right, tmp_path):
    assert_named(mistake, outcome_of(right, record(tmp_path / "wrong", *SMALL, mistake=mistake)))


def assert_named(mistake, outcome, step=1):
    cause = outcome.cause
    assert outcome.is_explained_by_cause, outcome.first
    assert (cause.step, cause.side, cause.operation) == (step, 1, mistake.operation)
    assert cause.place.position == (mistake.layer or 13)
    assert cause.place.module == MODULES.get((mistake.operation, mistake.call), cause.place.module)
    assert mistake.what in cause.what
    assert cause.order[1] == phase_of(mistake)


@pytest.mark.full
@pytest.mark.parametrize("mistake", IN_BF16, ids=name)
def test_it_is_named_in_bf16_though_its_error_is_less_than_what_depth_explains(mistake, right_in_bf16, tmp_path):
    assert_named(mistake, outcome_of(right_in_bf16, record(tmp_path / "wrong", *SMALL, *BF16, mistake=mistake)))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [(), BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("mistake", IN_STEP_2, ids=name)
def test_one_that_begins_in_step_2_is_named_there(mistake, dtype, tmp_path):
    usual, wrong = (
        record(tmp_path / str(each is None), *SMALL, *dtype, steps=2, mistake=each) for each in (None, mistake)
    )

    assert_named(mistake, outcome_of(usual, wrong), step=2)


@pytest.mark.full
def test_one_of_another_micro_batch_than_the_first_is_found_at_its_place(tmp_path):
    mistake = Mistake("norm", "output", since=1)
    sides = [
        record(tmp_path / str(each is None), *SMALL, "train.micro_batch_size=2", mistake=each)
        for each in (None, mistake)
    ]

    outcome = outcome_of(*sides)

    assert outcome.cause is None
    assert outcome.first.place.position == 7
    assert outcome.first.what.startswith("output of norm in input_layernorm")
    assert outcome.unchecked.startswith("it is in micro-batch 2")


@pytest.mark.full
@pytest.mark.parametrize("mistake", LOST, ids=name)
def test_one_that_loses_a_gradient_is_named(mistake, right, tmp_path):
    outcome = outcome_of(right, record(tmp_path / "wrong", *SMALL, mistake=mistake))

    assert_named(mistake, outcome)
    assert outcome.cause.error == float("inf")
    if mistake.what != "weight":  # weights' gradients are compared after the backward pass
        assert any("only one side has it" in each for each in outcome.skipped)


@pytest.mark.full
@pytest.mark.parametrize("mistake", OF_EXPERTS, ids=name)
def test_one_of_experts_is_named_with_its_layer(mistake, tmp_path):
    model = (*SMALL, "model.num_experts=4", "model.add_bias_linear=false", "model.moe_ffn_hidden_size=48")
    sides = [record(tmp_path / str(each is None), *model, mistake=each) for each in (None, mistake)]
    cause = outcome_of(*sides).cause
    assert (cause.operation, cause.place.position) == (mistake.operation, 7)


def phase_of(mistake):
    if mistake.operation == "optimizer":
        return NORM if mistake.what == "gradient norm" else UPDATE
    return FORWARD if mistake.what == "output" else BACKWARD


def test_every_operation_has_a_tap_and_a_mistake():
    operations = {name.removeprefix("pretrain_") for name in KERNEL_HOOKS}
    tapped = {*ARGUMENTS, "optimizer"}  # the optimizer is checked by its moments

    # What a permutation of rows does wrong is in the layer's output.
    assert tapped == operations - {"collectives", "moe_permute"}
    assert {mistake.operation for mistake in (*MISTAKES, *OF_EXPERTS)} == tapped


@pytest.mark.full
def test_a_kernel_that_both_sides_have_wrong_makes_no_difference(tmp_path):
    mistake = Mistake("norm", "output")
    both = [record(tmp_path / side, *SMALL, mistake=mistake) for side in ("first", "second")]

    outcome = outcome_of(*both)

    assert outcome.is_aligned
    assert {each.place.position for each in outcome.alike} == {7}
    lines = headline(outcome, [Recording.open(side) for side in both])
    assert lines[1] == "everything that was compared is equal"
    assert lines[2].startswith(
        "both sides differ from float64 by about the same: step 1, layer 7 of 12, forward: output of "
    )
