"""Charts of a comparison: shares of what is explained, over the depth of the model."""

import re
from math import inf, nan

import pytest

from pretrain.tools.align.comparing.outcome import FORWARD, AlignResult, Compared
from pretrain.tools.align.outcome_views import _chart
from pretrain.tools.align.recording.folder import ModulePlace


def compared(position, difference, explained):
    return Compared(
        order=(1, FORWARD, position, 0),
        place=ModulePlace(position, ""),
        operation="",
        what="",
        difference=difference,
        explained=explained,
    )


def drawn(*found):
    """Return the value at each place as the chart shows it."""
    svg = _chart(AlignResult(compared=found), 1, FORWARD, "forward")
    return {int(place): float(value) for place, value in re.findall(r"difference, place (\d+): ([\d.e+-]+)", svg)}


def test_a_place_shows_its_largest_share_of_what_is_explained():
    # A worst row may be farther than what is explained of a whole tensor.
    assert drawn(compared(7, 0.04, 0.08), compared(7, 0.01, 0.02), compared(8, 0.03, 0.02)) == {7: 0.5, 8: 1.5}


@pytest.mark.parametrize("difference", [nan, inf])
def test_what_is_not_finite_is_at_the_top(difference):
    assert drawn(compared(3, difference, 0.01)) == {3: 1e6}


def test_what_is_equal_is_at_the_bottom():
    assert drawn(compared(3, 0.0, 0.01)) == {3: 0.0001}
