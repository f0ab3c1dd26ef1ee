"""Fixtures that state settings of a small GPT-NeoX, and work out a key of a recipe."""

from __future__ import annotations

import pytest

from pretrain.tools.migrate.neox.meanings import FUNCTIONS
from pretrain.tools.migrate.neox.objects import flat
from pretrain.tools.migrate.setting import Setting, Settings, SourceLine
from tools.migrate.neox.small import small_neox


@pytest.fixture
def work():
    """Return a function from a key, stated settings and devices to what is worked out."""

    def one(key, *, devices=None, version="2026.05", **stated):
        settings = {name: Setting(name, value, name, SourceLine("x.yml", 3)) for name, value in stated.items()}
        return FUNCTIONS[key](Settings(small_neox(version=version), flat(settings), devices))

    return one


@pytest.fixture
def value(work):
    """Return a function as `work` has it, to the value alone; None where the key is left out."""

    def one(key, **given):
        found = work(key, **given)
        return None if found is None else found.value

    return one
