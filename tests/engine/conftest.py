"""What tests of layouts share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for the checkpoints of a module's layouts, which others of them load."""
    return tmp_path_factory.mktemp("layouts")
