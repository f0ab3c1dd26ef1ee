"""What tests of layouts share."""

from __future__ import annotations

import pytest

from engine import ranks


@pytest.fixture(scope="session")
def layouts(tmp_path_factory):
    """The folder of all modules' checkpoints."""
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def folder(request, layouts):
    """A folder for the checkpoints of a module's layouts, which others of them load."""
    return _folder_of(request.module, layouts)


@pytest.fixture(scope="session")
def tables_of_two_ranks(request, layouts):
    """Curves of the TABLE of each module that is run: two ranks train all, as their start takes longer than a case."""
    items = [item for item in request.session.items if "tables_of_two_ranks" in getattr(item, "fixturenames", ())]
    modules = dict.fromkeys(item.module for item in items)
    return ranks.run_all({module.TABLE: _folder_of(module, layouts) for module in modules}, 2, layouts)


@pytest.fixture(scope="module")
def two_ranks(request, tables_of_two_ranks):
    """Curves of the cases of the module's TABLE, as two ranks trained them."""
    return tables_of_two_ranks[request.module.TABLE]


def _folder_of(module, layouts):
    path = layouts / module.__name__
    path.mkdir(exist_ok=True)
    return path
