"""The bound of the differences that a dtype explains, against trainings in float64."""

import pytest

from tools.align.recorded import record
from tools.align.rounding import DTYPES, record_in_float64, rounding_of


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_kernels_stay_far_below_it_at_any_depth(dtype, tmp_path):
    shares = []
    for layers in (4, 32):
        override = f"model.num_layers={layers}"
        exact = record_in_float64(tmp_path / f"exact{layers}", override)
        shares.append(rounding_of(exact, record(tmp_path / f"{layers}", override, *DTYPES[dtype])).share)

    assert max(shares) < 0.5  # the bound is twice the error of correct kernels
    assert max(shares) < 1.5 * min(shares)  # it grows with depth as the errors do
