"""A metric is added to a copy by the steps of CONTRIBUTING.md; without one of them tests fail."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
EDITS = {
    "core/pretrain/report/metric_table.py": ("METRICS = (\n", ROW),
    "core/pretrain/training/reporting/meter.py": (
        '"lm_loss": totals.lm_loss,',
        '"lm_loss": totals.lm_loss, "added": 7,',
    ),
    "docs/metrics.md": None,  # generated
    "tests/report/conftest.py": ("METRICS = {\n", 'METRICS = {\n    "added": 7,\n'),
    "tests/report/test_records.py": ('    "consumed_tokens",\n', '    "consumed_tokens",\n    "added",\n'),
}
"""File of a step of the page -> a text there, and what stands in its place."""

TESTS = [
    "tests/docs/test_metrics_page.py",
    "tests/report/test_metric_table.py",
    "tests/report/test_records.py",
    "tests/training/reporting/test_meter.py",
]
SEES = {
    "core/pretrain/report/metric_table.py": TESTS[3],
    "core/pretrain/training/reporting/meter.py": TESTS[3],
    "docs/metrics.md": TESTS[0],
    "tests/report/conftest.py": TESTS[2],
    "tests/report/test_records.py": TESTS[2],
}
"""File of a step -> the tests that fail without it."""


def test_the_page_names_the_files():
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## To add a metric\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\d\. `(.+?)`", section, re.MULTILINE) == list(EDITS)


@pytest.mark.slow
@pytest.mark.parametrize("left_out", [None, *(pytest.param(file, marks=pytest.mark.full) for file in EDITS)])
def test_a_metric_is_added_by_all_steps_of_the_page(tmp_path, left_out):
    copied(tmp_path)
    for file in EDITS:
        if file != left_out:
            take_step(tmp_path, file)
    tests = TESTS if left_out is None else [SEES[left_out]]
    done = python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert done.returncode == (0 if left_out is None else 1), done.stdout


def take_step(folder, file):
    if EDITS[file] is None:
        assert python(folder, "docs/generate/metrics_page.py").returncode == 0
        return
    before, after = EDITS[file]
    text = (folder / file).read_text()
    assert text.count(before) == 1
    (folder / file).write_text(text.replace(before, after))


def copied(folder):
    shutil.copytree(
        ROOT / "core/pretrain", folder / "core/pretrain", ignore=shutil.ignore_patterns("tools", "__pycache__")
    )
    for name in (
        "pyproject.toml",
        "docs/metrics.md",
        "docs/generate/metrics_page.py",
        "tests/report/test_tensorboard.py",
        *EDITS,
        *TESTS,
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


def python(folder, *words):
    """Run Python with the copy's core."""
    environment = os.environ | {"PYTHONPATH": str(folder / "core")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
