"""The plan as JSON: names on which scripts rely."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from pretrain.plugins.backend import Figures
from pretrain.tools.plan.wording import plan_json
from tools.plan.made_plan import GIB, plan

FOUND = json.loads(json.dumps(plan_json(plan())))
DOCUMENT = Path(__file__).parents[3] / "docs" / "plan.md"


def test_the_sizes_are_bytes():
    assert (FOUND["memory_bytes"], FOUND["peak_bytes"], FOUND["fits"]) == (16 * GIB, 12 * GIB, True)
    first = FOUND["stages"][0]
    assert (first["peak_bytes"], first["allocated_bytes"], first["host_bytes"]) == (12 * GIB, 10 * GIB, 0)
    assert first["parts"] == {"weights": GIB, "activations": 9 * GIB, "reserve": GIB, "process groups": GIB}


def test_stages_are_in_order_with_the_ranks_that_were_traced():
    assert [(stage["stage"], stage["rank"], stage["micro_batches"]) for stage in FOUND["stages"]] == [
        (0, 0, 5),
        (1, 2, 4),
        (3, 6, 2),
    ]


def test_the_layout_has_the_recipe_s_names():
    layout = FOUND["layout"]
    assert (layout["pipeline_model_parallel_size"], layout["data_parallel_size"], layout["world_size"]) == (4, 2, 8)
    assert (layout["num_microbatches"], layout["layers_of_chunks"]) == (8, [2, 2, 2, 2])


def test_every_operation_has_its_kernels():
    assert FOUND["kernels"] == {"attention": ["flash"], "linear": ["plain", "fused"]}


def test_the_time_is_a_range_and_null_where_it_is_not_known():
    assert FOUND["time"]["seconds"] == {"low": 1.5, "high": 2.5}
    assert FOUND["time"]["left_out"] == ["kernel launches"]
    assert FOUND["time"]["unknown_links"] == ["messages between nodes count nothing"]
    assert plan_json(plan(time=None))["time"] is None


def test_fits_is_null_where_the_memory_is_not_known():
    assert plan_json(plan(memory=None))["fits"] is None
    assert plan_json(plan(memory=8 * GIB))["fits"] is False


def test_every_name_is_documented():
    named = set(re.findall(r"`([a-z0-9_]+)`", DOCUMENT.read_text(encoding="utf-8")))
    stage = FOUND["stages"][0]
    found = {*FOUND, *FOUND["figures"], *stage, *FOUND["time"], *stage["modules"][0]}
    assert found - named == set()


def test_figures_have_the_source_of_those_that_are_not_the_table_s():
    device = replace(plan().device, figures=Figures(node_bandwidth=12.5e9), sources={"node_bandwidth": "--network"})
    found = plan_json(plan(device=device))["figures"]
    assert (found["node_bandwidth"], found["link_bandwidth"]) == (12.5e9, None)
    assert found["sources"] == {"node_bandwidth": "--network"}
