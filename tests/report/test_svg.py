import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.report.svg import HEIGHT, WIDTH, ChartLine, chart, covering, label, thin

POINTS = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6))).map(lambda ys: list(enumerate(ys)))


def drawn(*curves, **options):
    return ET.fromstring(
        chart("a < b", [ChartLine(name="run & more", points=points, colour=0) for points in curves], **options)
    )


@given(POINTS)
def test_every_point_lies_inside_the_picture(points):
    text = chart("loss", [ChartLine(name="run", points=points, colour=0)])
    if all(y is None for _, y in points):
        assert text == ""
        return
    pairs = [pair for line in re.findall(r'points="([^"]*)"', text) for pair in line.split()]
    assert len(pairs) == sum(y is not None for _, y in points)
    for x, y in (map(float, pair.split(",")) for pair in pairs):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_names_are_escaped():
    figure = drawn([(0, 1.0), (1, 2.0)])
    assert figure.find("figcaption").text == "a < b"
    assert figure.find("svg/g/title").text == "run & more"


def test_a_logarithmic_scale_is_named_where_it_is_used():
    for highest, named in ((100.0, "norm, logarithmic"), (2.0, "norm")):
        curve = ChartLine(name="run", points=[(1, 1.0), (2, highest)], colour=0)
        assert f"<figcaption>{named}</figcaption>" in chart("norm", [curve], logarithmic=True)


def test_a_missing_value_is_a_gap():
    assert len(drawn([(0, 1.0), (1, 2.0), (2, None), (3, 2.0), (4, 1.0)]).findall(".//polyline")) == 2


def test_a_single_value_is_a_dot():
    assert len(drawn([(5, 1.0)]).findall(".//circle")) == 1


def test_curves_share_their_axes():
    low, high = drawn([(0, 0.0), (1, 0.0)], [(0, 10.0), (1, 10.0)]).findall(".//polyline")
    y = [float(line.get("points").split()[0].split(",")[1]) for line in (low, high)]
    assert y[0] > y[1]


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=300), st.integers(10, 60))
def test_thinning_loses_no_extreme_and_no_order(ys, most):
    points = list(enumerate(ys))
    kept = thin(points, most)
    assert kept == sorted(kept, key=lambda point: point[0])
    assert set(kept) <= set(points)
    assert len(kept) <= 1.5 * most + 3
    known = [y for y in ys if y is not None]
    if known:
        left = [y for _, y in kept if y is not None]
        assert (min(left), max(left)) == (min(known), max(known))


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
