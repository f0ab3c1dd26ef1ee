import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.plugins.requests import QUANTIZATIONS
from pretrain.reference.quantization import element_dtype
from pretrain.tools.align.comparing.distance import FP8_UNIT, UNIT, Explained, coarser

DTYPES = st.sampled_from(sorted(UNIT))


@given(DTYPES, st.integers(1, 100), st.data())
def test_it_grows_along_the_computation(dtype, layers, data):
    explained = Explained(dtype=dtype, layers=layers)
    position = data.draw(st.integers(0, layers))

    assert explained.at(position, is_backward=False) < explained.at(position + 1, is_backward=False)
    assert explained.at(position, is_backward=True) > explained.at(position + 1, is_backward=True)
    assert explained.at(layers + 1, is_backward=False) <= explained.at(layers + 1, is_backward=True)


@given(DTYPES, st.floats(1e-6, 1))
def test_weights_that_differ_before_the_step_explain_more(dtype, drift):
    still, drifted = (Explained(dtype=dtype, layers=4, drift=each) for each in (0.0, drift))

    assert drifted.at(2, is_backward=False) - still.at(2, is_backward=False) >= drift


def test_the_less_exact_dtype_counts():
    assert coarser("fp32", "bf16") == coarser("bf16", "fp16") == "bf16"


@given(DTYPES, st.integers(1, 100))
def test_the_gradient_norm_is_explained_better_than_a_gradient_and_a_row_worse(dtype, layers):
    explained = Explained(dtype=dtype, layers=layers)

    assert explained.of_norm < explained.of_gradient < explained.of_gradient_row


def test_a_neuron_whose_weights_have_moved_explains_more_of_its_own_gradient_alone():
    still, moved = (Explained(dtype="fp32", layers=4, drift=1e-6, row_drift=each) for each in (1e-6, 1e-3))

    assert moved.of_gradient_row - still.of_gradient_row > 1e-3
    assert moved.of_gradient == still.of_gradient
    assert moved.of_row(2, is_backward=True) == still.of_row(2, is_backward=True)


def test_fp8_explains_more_after_the_first_linear_and_the_same_at_any_depth():
    plain, rounded = (Explained(dtype="bf16", layers=8, fp8=kind) for kind in (None, "rowwise"))

    def more(position, *, is_backward):
        both = (each.at(position, is_backward=is_backward) for each in (rounded, plain))
        return float.__sub__(*both)

    assert more(0, is_backward=False) == 0
    assert more(1, is_backward=False) == pytest.approx(2 * 2**-4)
    assert more(8, is_backward=False) == pytest.approx(more(0, is_backward=True)) == pytest.approx(2 * 2**-4)


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_the_unit_roundoffs_are_those_of_the_operands(kind):
    dtypes = (element_dtype(kind, is_gradient=is_gradient) for is_gradient in (False, True))

    assert FP8_UNIT[kind] == tuple(torch.finfo(dtype).eps / 2 for dtype in dtypes)


def test_gradients_in_e5m2_are_explained_half_as_well():
    coarse, fine = (Explained(dtype="fp32", layers=8, fp8=kind) for kind in ("tensorwise", "rowwise"))

    assert coarse.at(3, is_backward=True) > 1.9 * fine.at(3, is_backward=True)
    assert coarse.at(3, is_backward=False) == fine.at(3, is_backward=False)


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_in_fp8_a_lost_tensor_and_a_lost_row_are_not_explained(kind):
    explained = Explained(dtype="fp32", layers=48, fp8=kind)

    assert explained.of_gradient < 0.3
    assert explained.of_gradient_row < 1
