"""A metric as a newcomer adds it by the steps of CONTRIBUTING.md; tests/test_pages.py follows them."""

from __future__ import annotations

from pathlib import Path

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
