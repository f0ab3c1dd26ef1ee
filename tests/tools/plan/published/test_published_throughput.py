"""Published speeds of Megatron-LM against the middle of our range: see throughput.yml."""

from __future__ import annotations

import pytest

from tools.plan.published import throughput
from tools.plan.published.own_process import answer

NEAR = 0.2
TABLE = throughput.table()


@pytest.mark.parametrize("row", TABLE["readme-2022"]["rows"], ids=lambda row: row["name"])
def test_times_from_memory_are_the_published_utilization(row):
    source = TABLE["readme-2022"]
    utilization = throughput.model_flops(source, row) / row["seconds"] / throughput.PEAKS[source["device"]]
    assert utilization == pytest.approx(row["mfu"], abs=0.002)


@pytest.mark.full
def test_175b_on_a100_is_within_a_fifth():
    assert abs(answer("tools.plan.published.throughput", "readme-2022", "175B")["175B"]) < NEAR


@pytest.mark.full
@pytest.mark.parametrize("source", TABLE)
def test_every_row_is_within_a_fifth_or_has_a_reason(source):
    rows = TABLE[source]["rows"]
    found = answer("tools.plan.published.throughput", source, *(row["name"] for row in rows))
    assert {name for name, deviation in found.items() if abs(deviation) >= NEAR} == {
        row["name"] for row in rows if "why" in row
    }
