"""Result of a search on one screen."""

from __future__ import annotations

from dataclasses import replace

from pretrain.plugins.backend import Figures
from pretrain.tools.plan.device import PlanDevice
from pretrain.tools.plan.search.search import Found, SearchResult, search_text, to_json
from tools.plan.made_plan import plan, stage
from tools.plan.search.test_choices import CHOICE

GIB = 2**30
FIGURES = Figures(memory_bandwidth=2e12, link_bandwidth=3e11, node_bandwidth=2.5e10, devices_per_node=8)
FOUND = Found(
    choice=CHOICE,
    arguments=("recompute.granularity=full", "train.micro_batch_size=2"),
    plan=plan(stage(0, 30), memory=32 * GIB),
)
RESULT = SearchResult(
    device=PlanDevice(backend_name="cuda", name="card", memory=32 * GIB, peak_flops=3e14, figures=FIGURES),
    devices=4,
    tried=12,
    fitting=3,
    best=[FOUND],
    planned=1,
    given_up=0,
    nearest=None,
    refused={"a size does not divide": 2},
)
NOTHING = replace(
    RESULT,
    fitting=0,
    best=[],
    nearest=replace(FOUND, arguments=(), plan=plan(stage(0, 33), memory=32 * GIB)),
    enough=(8, FOUND),
)


def test_the_screen_shows_layouts_as_they_were_planned_and_why_others_fell_out():
    assert search_text(RESULT).splitlines() == [
        "4 x card with 32 GiB: 3 of 12 legal layouts fit.",
        "device figures, from the table of backend cuda: matmuls 300 TFLOP/s, memory",
        "  2,000 GB/s, inside a node 300 GB/s, between nodes 25.0 GB/s, 8 devices a node",
        "",
        "The fastest of the layouts planned in full:",
        "",
        "1. 1 tensor x 4 pipeline x 1 data",
        "    30.0 GiB; fits: 2.00 GiB to spare on stage 0, the fullest",
        "    step: 1.50 to 2.50 s (bubble 15.7 %, communication 4.2 %, update 0.1 %)",
        "    messages between nodes count nothing",
        "    speed of a device: 25.6 to 42.7 tokens/s, 100 to 150 model TFLOP/s, 32.0",
        "      to 48.0 % of the peak",
        "    training: 300 G tokens in 63.4 to 105 days, 63,400 to 105,000 device-hours",
        "    --set recompute.granularity=full --set train.micro_batch_size=2",
        "",
        "The rest:",
        "  2 not legal: a size does not divide",
    ]


def test_json_has_the_same():
    found = to_json(RESULT)
    (best,) = found["best"]
    assert best["set"] == list(FOUND.arguments)
    assert (best["peak_bytes"], best["time"]["days"]["high"], best["fits"]) == (30 * GIB, 105.4, True)
    assert found["nearest"] is None
    assert found["refused"] == {"a size does not divide": 2}


def test_a_search_that_has_given_up_does_not_say_that_no_layout_fits():
    given_up = replace(NOTHING, tried=435, planned=15, given_up=400)
    assert search_text(given_up).splitlines()[:2] == [
        "4 x card with 32 GiB: none of the 15 layouts planned in full fits; 400 of 435",
        "  legal ones, which may fit, were not planned.",
    ]
    found = to_json(given_up)
    assert (found["fitting"], found["planned"], found["given_up"]) == (0, 15, 400)


def test_where_nothing_fits_the_smallest_and_more_devices_are_named():
    lines = search_text(NOTHING).splitlines()
    start = lines.index("The rest:")
    assert lines[start + 1 : start + 4] == [
        "  the smallest layout takes 1.00 GiB too much:",
        "    the recipe as it is",
        "  8 devices are enough: 1 tensor x 4 pipeline x 1 data",
    ]
    assert "    --devices 8 --set recompute.granularity=full --set train.micro_batch_size=2" in lines
    assert to_json(NOTHING)["enough"]["devices"] == 8
    assert to_json(RESULT)["enough"] is None
