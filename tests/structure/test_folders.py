"""A folder has few enough modules to be seen at a glance. There is no list of exceptions."""

from __future__ import annotations

from collections import Counter

from structure.sources import tracked

MODULES = 20


def test_no_folder_is_crowded():
    modules = (path for path in tracked() if path.suffix == ".py" and path.name != "__init__.py")
    in_folder = Counter(path.parent.as_posix() for path in modules)
    assert {folder: count for folder, count in in_folder.items() if count > MODULES} == {}
