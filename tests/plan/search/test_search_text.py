"""Result of a search on one screen."""

from __future__ import annotations

from dataclasses import replace

from plan.search.test_choices import CHOICE
from pretrain.plan.device import PlanDevice
from pretrain.plan.search.search import Found, SearchResult
from pretrain.plan.search.search_text import search_text, to_json
from pretrain.plan.time.step_time import Range
from pretrain.plugins.backend import Figures

GIB = 2**30
FOUND = Found(
    choice=CHOICE,
    arguments=("recompute.granularity=full", "train.micro_batch_size=2"),
    peak_bytes=30 * GIB,
    most_bytes=31 * GIB,
    seconds=Range(1.0, 2.5),
)
RESULT = SearchResult(
    device=PlanDevice(
        backend_name="cuda", name="card", is_named=True, memory=32 * GIB, peak_flops=None, figures=Figures()
    ),
    devices=4,
    tried=12,
    fitting=3,
    best=[FOUND],
    too_large=9,
    nearest=replace(FOUND, arguments=(), most_bytes=33 * GIB, seconds=None),
    refused={"a size does not divide": 2},
)


def test_the_screen_shows_layouts_and_why_others_fell_out():
    assert search_text(RESULT).splitlines() == [
        "4 x card with 32 GiB: 3 of 12 legal layouts fit.",
        "",
        "Fastest first, estimated from traced pieces; `pretrain plan` one for more.",
        "",
        "1. 1 to 2.5 s a step, 30.0 GiB (at most 31.0): 1 tensor x 4 pipeline x 1 data",
        "    --set recompute.granularity=full --set train.micro_batch_size=2",
        "",
        "The rest:",
        "  9 may not fit; the smallest of them by 1.0 GiB:",
        "    the recipe as it is",
        "  2 not legal: a size does not divide",
    ]


def test_json_has_the_same():
    found = to_json(RESULT)
    assert found["best"] == [
        {"set": list(FOUND.arguments), "peak_bytes": 30 * GIB, "most_bytes": 31 * GIB, "seconds": [1.0, 2.5]}
    ]
    assert found["nearest"] == {"set": [], "peak_bytes": 30 * GIB, "most_bytes": 33 * GIB, "seconds": None}
    assert found["refused"] == {"a size does not divide": 2}


def test_where_nothing_fits_more_devices_are_named():
    nothing = replace(RESULT, fitting=0, best=[], enough=(8, FOUND))
    text = search_text(nothing)
    assert "  8 devices are enough: 1 to 2.5 s a step, 30.0 GiB (at most 31.0):" in text.splitlines()
    assert "    --devices 8 --set recompute.granularity=full --set train.micro_batch_size=2" in text.splitlines()
    assert to_json(nothing)["enough"]["devices"] == 8
    assert to_json(RESULT)["enough"] is None
