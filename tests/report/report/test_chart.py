import re
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from pretrain.report.page.svg import HEIGHT, WIDTH, Curve, chart, thin

POINTS = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6))).map(lambda ys: list(enumerate(ys)))


def drawn(*curves, **options):
    return ET.fromstring(
        chart("a < b", [Curve(name="run & more", points=points, colour=0) for points in curves], **options)
    )


@given(POINTS)
def test_every_point_lies_inside_the_picture(points):
    text = chart("loss", [Curve(name="run", points=points, colour=0)])
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
        curve = Curve(name="run", points=[(1, 1.0), (2, highest)], colour=0)
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
