"""What a run costs besides its steps: the formulas against numbers worked out by hand, and what the screen says."""

from __future__ import annotations

from dataclasses import replace
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.tools.plan.run_costs import (
    RunCostOptions,
    RunCosts,
    best_interval,
    checkpoint_bytes,
    cost_lines,
    duration,
    run_costs,
    useful_share,
)
from pretrain.tools.plan.wording import plan_json
from tools.plan.made_plan import GIB, TIME, plan, recipe
from tools.plan.test_plan_json import DOCUMENT

SECONDS = st.floats(1, 1e5)
COSTS = RunCosts(
    checkpoint_bytes=500 * GIB,
    ranks=8,
    async_save=False,
    storage_bandwidth=10.0 * GIB,  # so 50 s
    mtbf_seconds=10_000.0,
    start_seconds=450.0,
    save_interval_seconds=4000.0,
)


def test_the_best_interval_is_that_of_young_less_two_thirds_of_a_save_where_saves_are_short():
    # sqrt(2 * 0.5 * 1,000,000) - 0.5 * 2 / 3: the first two terms of the condition's series
    assert isclose(best_interval(0.5, 1_000_000.0), 1000 - 1 / 3, rel_tol=1e-6)


def test_the_useful_share_is_the_inverse_of_daly_s_wall_time():
    # exp(0.105) - 1 = 0.110711 and exp(0.05) = 1.051271: 0.1 / 0.110711 / 1.051271
    assert round(useful_share(1000.0, 50.0, 500.0, 10_000.0), 5) == 0.85920


def test_without_failures_saves_alone_take_time():
    assert isclose(useful_share(900.0, 100.0, 500.0, 1e15), 0.9, rel_tol=1e-6)


@given(SECONDS, st.floats(0.1, 1e4))
def test_other_intervals_than_the_best_one_are_worse(save, failures):
    mean = save * failures
    best = best_interval(save, mean)
    shares = [useful_share(factor * best, save, 0.0, mean) for factor in (0.9, 1.0, 1.1)]
    assert 0 < best < mean
    assert shares[1] == max(shares)


@given(SECONDS, SECONDS, SECONDS, st.floats(0.01, 1e9))
def test_a_share_is_one_whatever_is_given(interval, save, restart, mean):
    assert 0 <= useful_share(interval, save, restart, mean) < 1


def test_a_checkpoint_has_every_parameter_with_its_state_once():
    # 8 layers of 64: attention 4 * 64 * 64 + 4 * 64, MLP 8 * 64 * 64 + 5 * 64, norms 4 * 64; 384 rows of the embedding,
    # 32 positions, a last norm. Adam has two states in fp32, and bf16 has main weights.
    parameters = 8 * (12 * 64 * 64 + 13 * 64) + 384 * 64 + 32 * 64 + 2 * 64
    given = recipe(["model.add_bias_linear=true", "model.untie_embeddings_and_output_weights=false"])
    assert checkpoint_bytes(replace_dtype(given, "fp32"), 257) == 12 * parameters
    assert checkpoint_bytes(replace_dtype(given, "bf16"), 257) == 14 * parameters


def replace_dtype(given, dtype):
    return given.model_copy(update={"precision": given.precision.model_copy(update={"dtype": dtype})})


def test_the_screen_has_size_start_interval_and_share():
    assert cost_lines(COSTS) == [
        "checkpoint: 500 GiB, 62.5 GiB of it by each of 8 ranks; written in 50.0 s",
        "start, and restart: 8.33 min, 7.50 min as given, and 50.0 s to read the checkpoint",
        (
            # 10,000 (1 - exp(-1016.95 / 10,000)) = 966.95 s; 450 + 50 + 1016.95 / 2 = 1008.5 s
            "best save interval: 16.1 min of training, with a failure every 2.78 h"
            "; then a failure costs 16.8 min, and 85.9 % of the time is useful"
        ),
        # 450 + 50 + (4000 + 50) / 2 = 2525 s; 0.4 / (exp(0.405) - 1) / exp(0.05) = 0.762
        "the recipe's save interval: 66.7 min; then a failure costs 42.1 min, and 76.2 % of the time is useful",
    ]


def test_the_last_line_names_the_options_that_are_missing():
    for name, option in (("storage_bandwidth", "--storage"), ("mtbf_seconds", "--mtbf"), ("start_seconds", "--start")):
        lines = cost_lines(replace(COSTS, **{name: None}))
        assert lines[-1] == f"give {option} for the share of useful time"
        assert not any("useful" in line for line in lines[:-1])


def test_an_asynchronous_save_costs_less_than_is_counted():
    assert "async_save: steps go on" in cost_lines(replace(COSTS, async_save=True))[-1]


def test_a_recipe_s_interval_is_its_iterations_by_the_middle_of_a_step_s_time():
    given = RunCostOptions(mtbf_seconds=60.0)
    assert run_costs(recipe(["checkpoint.save_interval=50"]), 257, 8, TIME, given=given).save_interval_seconds == 100
    assert run_costs(recipe(["checkpoint.save_interval=50"]), 257, 8, None, given=given).save_interval_seconds is None
    assert run_costs(recipe(), 257, 8, TIME, given=given).save_interval_seconds is None


@pytest.mark.parametrize(("seconds", "text"), [(5, "5.00 s"), (119, "119 s"), (120, "2.00 min"), (86400, "24.0 h")])
def test_a_duration_has_the_unit_of_which_there_are_two(seconds, text):
    assert duration(seconds) == text


def test_the_json_has_all_of_it_by_documented_names():
    found = plan_json(replace(plan(), costs=COSTS))["costs"]
    assert (found["transfer_seconds"], found["restart_seconds"]) == (50.0, 500.0)
    assert round(found["best_save_interval_seconds"], 2) == 966.95
    assert round(found["failure_seconds"], 1) == 1008.5
    assert round(found["useful_share"], 3) == 0.859
    assert round(found["useful_share_of_recipe"], 3) == 0.762
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in found if f"`{name}`" not in text] == []
    assert plan_json(plan())["costs"] is None
