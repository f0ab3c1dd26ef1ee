"""A model key, a metric and an optimizer are added to a copy by CONTRIBUTING.md's steps; without one a test fails."""

import pytest

from engine.optimizers.added_optimizer import PAGE as OPTIMIZER
from model.added_key import PAGE as KEY
from pages import copy_sources, run
from report.added_metric import PAGE as METRIC

PAGES = KEY, METRIC, OPTIMIZER


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.heading)
def test_a_page_names_the_files(page):
    assert page.named_files() == list(page.steps) == list(page.sees)


def test_each_is_added_by_all_steps_of_its_page(tmp_path):
    copy_sources(tmp_path)
    for page in PAGES:
        page.take(tmp_path)
    done = run(tmp_path, *(test for page in PAGES for test in page.sees.values()))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
    ("page", "left_out"),
    [pytest.param(page, step, id=f"{page.heading}-{step}") for page in PAGES for step in page.steps],
)
def test_without_a_step_of_the_page_a_test_fails(tmp_path, page, left_out):
    done = page.follow_without(left_out, tmp_path)
    assert done.returncode != 0, done.stdout + done.stderr


LAYOUTS = """
ADDED = {
    "megatron": Case(("model.v_layernorm=true",), TP, last=SAVED_AT),
    "stage 1": Case(("model.v_layernorm=true",), (*STAGE[1], *TP), last=SAVED_AT),
}
"""
TEST = """
import pytest

from engine import layouts, ranks
from engine.comparison import check


def test_two_tensor_parallel_ranks_train_as_one(tmp_path):
    results = ranks.run("ADDED", 2, tmp_path)
    for name, case in layouts.ADDED.items():
        check(results[name], case)
"""


@pytest.mark.full
@pytest.mark.ranks
def test_the_added_key_trains_on_two_ranks_as_on_one_with_both_engines(tmp_path):
    """Each rank norms its own heads: both engines sum the gradients without a word on the page about it."""
    copy_sources(tmp_path)
    KEY.take(tmp_path)
    with (tmp_path / "tests/engine/layouts.py").open("a") as file:
        file.write(LAYOUTS)
    (tmp_path / "tests/engine/test_added.py").write_text(TEST)
    done = run(tmp_path, "tests/engine/test_added.py")
    assert done.returncode == 0, done.stdout + done.stderr
