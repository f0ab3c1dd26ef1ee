"""Plugins that import the kit by its name before contract 1.3 go on."""

import importlib
import sys

import pytest


@pytest.mark.parametrize("module", ["suite", "offers"])
def test_the_kit_is_there_under_its_old_name_with_a_warning(module):
    sys.modules.pop(f"pretrain.testing.{module}", None)
    with pytest.warns(FutureWarning, match=f"import pretrain.conformance.{module}"):
        old = importlib.import_module(f"pretrain.testing.{module}")
    new = importlib.import_module(f"pretrain.conformance.{module}")
    tests = [name for name in vars(new) if name.startswith("Test")]
    assert tests
    assert all(getattr(old, name) is getattr(new, name) for name in tests)
