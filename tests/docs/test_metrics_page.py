"""docs/metrics.md agrees with the table of metrics."""

from __future__ import annotations

from pathlib import Path

from metrics_page import PAGE, page


def test_the_page_is_up_to_date():
    present = (Path(__file__).parents[2] / "docs" / PAGE).read_text(encoding="utf-8")
    assert present == page(), "run: python docs/generate/metrics_page.py"
