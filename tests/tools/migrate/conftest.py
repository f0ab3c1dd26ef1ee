"""Tests that run a script are skipped where there are no cells."""

from __future__ import annotations

import pytest

from recipe.conftest import make, refusal, smallest
from tools.migrate.cell.namespaces import skip_scripts

__all__ = ["make", "refusal", "smallest"]


@pytest.fixture(autouse=True)
def _cells(monkeypatch, request):
    if "without_a_cell" not in request.node.name:
        skip_scripts(monkeypatch)
