import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.tools.align.comparing.distance import Distance, vectors, worst_row


def test_equal_tensors_have_none():
    x = torch.randn(2, 3, 4)

    assert Distance.between(x, x.clone()) == Distance(0.0, 0.0)


def test_it_is_a_part_of_the_larger_norm():
    distance = Distance.between(torch.full((2, 3, 4), 1.0), torch.full((2, 3, 4), 1.25))

    assert distance.whole == pytest.approx(0.2)
    assert distance.row == pytest.approx(0.2)


def test_one_row_of_many_is_seen():
    x = torch.ones(1, 1000, 4)
    other = x.clone()
    other[0, 17] = 2.0

    distance = Distance.between(x, other)

    assert distance.whole < 0.04
    assert distance.row == 0.5


@pytest.mark.parametrize("factor", [0.0, -1.0, 1.2])
def test_a_wrong_token_is_seen_beside_one_that_is_a_thousand_times_larger(factor):
    x = torch.randn(8, 64, 16, generator=torch.Generator().manual_seed(1))
    x[:, 0] *= 1000  # as the first token of many trained models is
    other = x.clone()
    other[3, 17] *= factor

    distance = Distance.between(x, other)

    assert distance.whole < 1e-2
    assert distance.row > 0.15


def test_a_small_row_is_compared_with_the_median_one():
    x = torch.ones(1, 10, 4)
    x[0, 3] = 0.0
    other = x.clone()
    other[0, 3] = 1e-6

    assert Distance.between(x, other).row < 2e-6


def test_another_shape_is_infinitely_far():
    assert Distance.between(torch.ones(2, 3), torch.ones(3, 2)) == Distance(math.inf, math.inf)


def test_the_farthest_copy_counts():
    x = torch.ones(1, 2, 4)

    assert Distance.between_parts([[x, x]], [[x, 2 * x]]).whole == 0.5
    assert Distance.between_parts([[x, 2 * x]], [[x]]).whole == 0.5


def test_the_sides_may_divide_samples_into_other_parts():
    x, other = torch.randn(2, 6, 3, 4).double()

    in_parts = Distance.between_parts([[part] for part in x.split(2)], [[part] for part in other.split([1, 3, 2])])

    assert in_parts.whole == pytest.approx(Distance.between(x, other).whole)
    assert in_parts.row == pytest.approx(Distance.between(x, other).row)


def test_a_side_with_fewer_samples_is_infinitely_far():
    x = torch.ones(3, 2, 4)

    assert Distance.between_parts([[x]], [[x[:2]]]).whole == math.inf
    assert Distance.between_parts([[x[:2]]], [[x]]).whole == math.inf


@given(st.floats(1e-6, 1e6), st.floats(0.5, 2.0))
def test_it_does_not_depend_on_the_scale(scale, factor):
    x = torch.linspace(1, 2, 24, dtype=torch.float64).view(2, 3, 4)

    first, second = Distance.between(x, factor * x), Distance.between(scale * x, scale * factor * x)

    assert math.isclose(first.whole, second.whole, rel_tol=1e-9, abs_tol=1e-12)


def test_a_floor_keeps_rounding_errors_of_nothing_small():
    assert vectors(torch.tensor([1e-9]), torch.tensor([-1e-9])) == 2.0
    assert vectors(torch.tensor([1e-9]), torch.tensor([-1e-9]), floor=1.0) < 1e-8


def test_a_lost_row_of_many_is_wholly_different():
    gradient = torch.randn(128, 32, generator=torch.Generator().manual_seed(1)).double()
    other = gradient.clone()
    other[17] = 0.0

    assert vectors(gradient, other) < 0.12
    assert 0.5 < worst_row(gradient, other) <= 1.0
    assert worst_row(gradient, gradient) == 0.0


def test_a_lost_entry_of_a_vector_is_different():
    assert worst_row(torch.ones(100), torch.ones(100).index_fill(0, torch.tensor([3]), 0.0)) == 1.0
