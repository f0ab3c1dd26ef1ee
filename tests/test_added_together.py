"""A model key, a metric and an optimizer are added to one copy by all steps of CONTRIBUTING.md's pages.

The tests beside those parts leave out one step each.
"""

from engine.optimizers.test_added_optimizer import PAGE as OPTIMIZER
from model.test_added_key import PAGE as KEY
from pages import copy_sources, run
from report.test_added_metric import PAGE as METRIC


def test_each_is_added_by_all_steps_of_its_page(tmp_path):
    pages = KEY, METRIC, OPTIMIZER
    copy_sources(tmp_path)
    for page in pages:
        page.take(tmp_path)
    done = run(tmp_path, *(test for page in pages for test in page.sees.values()))
    assert done.returncode == 0, done.stdout + done.stderr
