"""A metric is added to a copy by the steps of CONTRIBUTING.md; without one of them tests fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import Page

ROW = """METRICS = (
    Metric(
        name="added",
        help="Added by a test.",
        console=Line(15, "added {}"),
        tensorboard=Tag("added", over_samples=True),
        figure=Figure(15, "added by a test"),
        optional=False,
    ),
"""
METER, RECORDS = "tests/training/reporting/test_meter.py", "tests/report/test_records.py"
PAGE = Page(
    heading="To add a metric",
    steps={
        "core/pretrain/report/metric_table.py": ("METRICS = (\n", ROW),
        "core/pretrain/training/reporting/meter.py": (
            '"lm_loss": totals.lm_loss,',
            '"lm_loss": totals.lm_loss, "added": 7,',
        ),
        "docs/metrics.md": Path("docs/generate/metrics_page.py"),
        "tests/report/conftest.py": ("METRICS = {\n", 'METRICS = {\n    "added": 7,\n'),
        "tests/report/test_records.py": ('    "consumed_tokens",\n', '    "consumed_tokens",\n    "added",\n'),
    },
    sees={
        "core/pretrain/report/metric_table.py": METER,
        "core/pretrain/training/reporting/meter.py": METER,
        "docs/metrics.md": "tests/docs/test_metrics_page.py",
        "tests/report/conftest.py": RECORDS,
        "tests/report/test_records.py": RECORDS,
    },
)


def test_the_page_names_the_files():
    assert PAGE.named_files() == list(PAGE.steps) == list(PAGE.sees)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("left_out", PAGE.steps)
def test_without_a_step_of_the_page_a_test_fails(tmp_path, left_out):
    done = PAGE.follow_without(left_out, tmp_path)
    assert done.returncode != 0, done.stdout + done.stderr
