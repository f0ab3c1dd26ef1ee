"""megatron.core is translated when it is imported, once per version of its source; other packages never are."""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
from pathlib import Path

import pytest
from pretrain.bridge.megatron.loader import PACKAGE, Finder, TranslatingLoader

from pretrain.bridge.megatron.names import DeviceNames
from pretrain.cpu.backend import CpuBackend

SOURCE = "import torch\nwhere = torch.cuda.current_device()\n"


@pytest.fixture
def names():
    return DeviceNames(CpuBackend())


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "made_up.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def load(source, names):
    """Import the source as a module of megatron.core; return its globals."""

    def load():
        loader = TranslatingLoader(f"{PACKAGE}.made_up", str(source), names)
        spec = importlib.util.spec_from_file_location(f"{PACKAGE}.made_up", source, loader=loader)
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return vars(module)

    return load


def cached(source):
    return list(source.parent.glob("__pycache__/made_up.*-pretrain-*.pyc"))


def test_a_module_runs_with_the_names_of_its_device(load, names):
    assert load()["where"] == names.current_device()


def test_the_second_import_takes_the_bytecode_of_the_first(load, source):
    load()
    (cache,) = cached(source)
    cache.write_bytes(marshal.dumps(compile("where = 'from the cache'", "made_up.py", "exec")))
    assert load()["where"] == "from the cache"


def test_another_version_of_the_source_is_translated_again(load, source):
    load()
    source.write_text("where = 'edited'\n")
    assert load()["where"] == "edited"


def test_an_edit_of_the_same_size_is_seen(load, source):
    load()
    time = source.stat().st_mtime_ns
    source.write_text(SOURCE.replace("where", "there"))
    os.utime(source, ns=(time + 1, time + 1))
    assert "there" in load()


@pytest.mark.parametrize("damage", [b"", b"\x00", b"not bytecode", marshal.dumps("text")[:-1]])
def test_a_damaged_cache_is_made_again(load, source, names, damage):
    load()
    (cache,) = cached(source)
    cache.write_bytes(damage)
    assert load()["where"] == names.current_device()
    assert cache.read_bytes() != damage


def test_a_folder_that_cannot_be_written_is_ignored(load, source, names):
    (source.parent / "__pycache__").write_text("a file where the folder should be")
    assert load()["where"] == names.current_device()


def test_no_temporary_file_stays(load, source):
    load()
    assert list(source.parent.glob("__pycache__/*")) == cached(source)


def test_modules_of_megatron_core_are_found_and_others_left_to_python(names):
    finder = Finder(names)
    (folder,) = importlib.util.find_spec(PACKAGE).submodule_search_locations
    for spec in (finder.find_spec(PACKAGE, [str(Path(folder).parent)]), finder.find_spec(f"{PACKAGE}.utils", [folder])):
        assert isinstance(spec.loader, TranslatingLoader)
    assert finder.find_spec("json") is None
    assert finder.find_spec("megatron") is None
    assert finder.find_spec(f"{PACKAGE}_extension", sys.path) is None
    assert finder.find_spec(f"{PACKAGE}.not_there", [folder]) is None
