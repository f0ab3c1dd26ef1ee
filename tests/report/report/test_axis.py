import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.report.page.svg import covering, label

NUMBERS = st.lists(st.floats(-1e12, 1e12).map(lambda value: round(value, 6)), min_size=1)


@given(NUMBERS)
def test_all_values_lie_on_the_axis_and_ticks_between_its_ends(values):
    axis = covering(values, 0, 100)
    assert all(-1e-6 <= axis.at(value) <= 100 + 1e-6 for value in values)
    assert all(-1e-3 <= axis.at(tick) <= 100 + 1e-3 for tick in axis.ticks())
    assert 3 <= len(axis.ticks()) <= 11


@given(st.lists(st.floats(1e-9, 1e9), min_size=1))
def test_a_logarithmic_axis_too(values):
    axis = covering(values, 0, 100, logarithmic=True)
    assert all(-1e-6 <= axis.at(value) <= 100 + 1e-6 for value in values)
    assert 3 <= len(axis.ticks()) <= 20


def test_ticks_are_round():
    assert covering([0.0, 1000.0], 0, 100, margin=0).ticks() == [0, 200, 400, 600, 800, 1000]
    assert covering([4.1878, 5.4313], 244, 20).ticks() == pytest.approx([4.25, 4.5, 4.75, 5, 5.25])
    assert covering([1.5, 60.0], 0, 100, logarithmic=True).ticks() == [2, 5, 10, 20, 50]
    assert covering([0.01, 1000.0], 0, 100, logarithmic=True).ticks() == pytest.approx([0.01, 0.1, 1, 10, 100, 1000])


def test_values_that_hardly_differ_stay_linear():
    assert not covering([1.0, 2.0], 0, 100, logarithmic=True).logarithmic
    assert not covering([0.0, 1000.0], 0, 100, logarithmic=True).logarithmic


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (1500, "1500"), (12e6, "12M"), (65536, "65.54k"), (3e-5, "3e-5"), (1.5e-4, "1.5e-4")],
)
def test_labels(value, text):
    assert label(value) == text
