"""The plan as one HTML page."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from pretrain.errors import PretrainError
from pretrain.report.html import write_page
from pretrain.report.svg import HEIGHT, LEFT, RIGHT, WIDTH
from pretrain.tools.plan.plan_views import X_LABEL, area_chart, page
from tools.plan.made_plan import GIB, plan, stage

PAGE = page(plan())


def figure_of(memory, highest=16 * GIB):
    return ET.fromstring(area_chart(stage(0, 12), memory, highest))


def corners(polygon):
    return [tuple(map(float, pair.split(","))) for pair in polygon.get("points").split()]


def test_it_is_one_file_without_scripts_and_network():
    assert PAGE.startswith("<!doctype html>")
    assert PAGE.count("<style>") == 1
    assert not re.search(r"<script|<link|<img|src=|url\(|https?://", PAGE)


def test_it_has_the_numbers_of_the_screen():
    for line in (
        "tiny.yml on 8 x Acme 9, 16 GiB",
        "fits: 4.00 GiB to spare on stage 0, the fullest",
        "stage 2 holds at most what stage 1 holds",
        "step: 1.50 to 2.50 s (bubble 15.7 %, communication 4.2 %, update 0.1 %)",
        "tokenizer: vocab.json not found; counting with 257 entries",
    ):
        assert line in PAGE
    assert "<td>12.0</td><td>9.0</td><td>5.0</td>" in PAGE


def test_it_has_a_chart_for_each_stage_and_their_modules():
    assert PAGE.count("<svg ") == 3
    assert PAGE.count("Modules of stage") == 3
    assert "linear_fc1" in PAGE


def test_names_are_escaped():
    assert "&lt;b&gt; of tensors" in page(plan(notices=["<b> of tensors"]))


def test_areas_lie_on_each_other_and_end_at_their_sum():
    weights, activations = figure_of(16 * GIB).findall(".//polygon")
    assert [weights.find("title").text, activations.find("title").text] == ["weights", "activations"]
    assert [x for x, _ in corners(weights)[:3]] == [LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT]
    assert [y for _, y in corners(activations)[3:]] == [y for _, y in corners(weights)[:3]][::-1]
    heights = [corners(weights)[-1][1] - y for _, y in (corners(weights)[1], corners(activations)[1])]
    assert heights[1] / heights[0] == pytest.approx(10, rel=0.01)  # 1 GiB of weights, 9 of activations


def test_the_axis_is_said_to_be_no_time():
    assert figure_of(None).find("p").text == X_LABEL
    assert "not of its time" in X_LABEL


def test_the_limit_is_a_line_at_its_height_and_a_note_where_it_is_far_above():
    limit = figure_of(16 * GIB).find(".//line[@class='limit']")
    peak = figure_of(16 * GIB).find(".//line[@class='peak']")
    assert 0 < float(limit.get("y1")) < float(peak.get("y1")) < HEIGHT
    far = figure_of(80 * GIB, highest=12 * GIB)
    assert far.find(".//line[@class='limit']") is None
    assert far.find("figcaption").text == "stage 0: GiB over one step; the device's 80.0 GiB are beyond the chart"


def test_a_plan_that_is_flat_below_the_device_s_memory_is_drawn_larger():
    assert "beyond the chart" in page(plan(memory=37 * GIB))
    assert "beyond the chart" not in page(plan(memory=36 * GIB))


def test_it_is_written_as_a_whole_or_not_at_all(tmp_path):
    write_page(PAGE, tmp_path / "deep" / "plan.html", PretrainError)
    assert (tmp_path / "deep" / "plan.html").read_text() == PAGE
    with pytest.raises(PretrainError, match=r"plan\.html"):
        write_page(PAGE, tmp_path / "deep" / "plan.html" / "plan.html", PretrainError)
