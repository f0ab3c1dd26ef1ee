"""Pages of CONTRIBUTING.md, "To add ...", followed in a copy of the sources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEAVE_OUT = shutil.ignore_patterns("__pycache__", "*.png", "public", "seeds")


@dataclass(frozen=True)
class Page:
    """A page, and what a newcomer writes by it.

    Attributes:
        heading: of the page.
        steps: file of a step, or a folder with one that has the text -> a text and what stands in its place, or several
            such pairs; the text of a new file; the script that generates the file.
        sees: file of a step -> the test that fails without it.
    """

    heading: str
    steps: dict[str, tuple[str, str] | list[tuple[str, str]] | str | Path]
    sees: dict[str, str]

    def named_files(self) -> list[str]:
        """Return the files that the page names, one for each step."""
        section = (ROOT / "CONTRIBUTING.md").read_text().partition(f"## {self.heading}\n")[2].partition("\n## ")[0]
        return re.findall(r"^\d+\. `(.+?)`", section, re.MULTILINE)

    def follow_without(self, left_out: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Take all steps but one in a copy of the sources, and run the test that sees it."""
        copy_sources(folder)
        self.take(folder, left_out)
        return run(folder, self.sees[left_out])

    def take(self, folder: Path, left_out: str | None = None) -> None:
        """Take the steps in a copy of the sources."""
        for name, step in self.steps.items():
            if name != left_out:
                _take(folder, folder / name, step)


def copy_sources(folder: Path) -> None:
    """Copy what the pages change, and the tests."""
    for name in ("core", "docs", "recipes", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=LEAVE_OUT)
    shutil.copy(ROOT / "pyproject.toml", folder)


def run(folder: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run tests of the copy."""
    return _python(folder, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *dict.fromkeys(tests))


def _take(folder: Path, place: Path, step: tuple[str, str] | list[tuple[str, str]] | str | Path) -> None:
    if isinstance(step, Path):
        done = _python(folder, str(step))
        assert done.returncode == 0, done.stderr
    elif isinstance(step, str):
        place.write_text(step)
    elif isinstance(step, list):
        for pair in step:
            _take(folder, place, pair)
    else:
        files = place.rglob("*.py") if place.is_dir() else [place]
        [file] = [file for file in files if step[0] in file.read_text()]
        assert file.read_text().count(step[0]) == 1, file
        file.write_text(file.read_text().replace(*step))


def _python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy's core."""
    environment = os.environ | {"PYTHONPATH": str(folder / "core")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
