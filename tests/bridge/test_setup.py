"""Installing the bridge: once, for one device, before megatron.core, and without side effects elsewhere."""

from __future__ import annotations

import importlib.util
import marshal
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pretrain.bridge import megatron
from pretrain.bridge.megatron.names import DeviceNames
from pretrain.bridge.megatron.setup import PACKAGE, Finder, TranslatingLoader
from pretrain.cpu.backend import CpuBackend
from pretrain.errors import BackendError

CPU = CpuBackend()
CUDA = SimpleNamespace(device_type="cuda")
NPU = SimpleNamespace(device_type="npu")
TORCH_STAYS = """
import types, torch
from pretrain.bridge import megatron
from pretrain.cpu.backend import CpuBackend

before = {owner: dict(vars(owner)) for owner in (torch, torch.cuda, torch.Tensor, torch.nn.Module, torch.distributed)}
megatron.install(CpuBackend())
import pretrain.training.assembly
import megatron.core.optimizer
for owner, names in before.items():
    changed = [name for name, value in names.items() if vars(owner).get(name) is not value]
    new = {name: value for name, value in vars(owner).items() if name not in names}
    added = [name for name, value in new.items() if not isinstance(value, types.ModuleType)]
    assert not changed and not added, (owner, changed, added)
"""


@pytest.fixture
def fresh(monkeypatch):
    """Python as it is before the bridge and megatron.core."""
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if not isinstance(finder, Finder)])
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)


def finders():
    return [finder for finder in sys.meta_path if isinstance(finder, Finder)]


def test_megatron_core_is_found_by_the_bridge_first(fresh):
    megatron.install(CPU)
    assert sys.meta_path[0].device_type == "cpu"


def test_installing_twice_changes_nothing(fresh):
    megatron.install(CPU)
    once = list(sys.meta_path)
    megatron.install(CpuBackend())
    assert sys.meta_path == once


def test_another_device_in_the_same_process_is_refused(fresh):
    megatron.install(CPU)
    with pytest.raises(BackendError, match="trains on cpu; npu needs a process of its own"):
        megatron.install(NPU)


def test_a_megatron_core_that_was_imported_before_is_refused(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, SimpleNamespace())
    with pytest.raises(BackendError, match="imported before the bridge for cpu"):
        megatron.install(CPU)
    assert finders() == []


def test_cuda_needs_nothing(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, SimpleNamespace())
    before = list(sys.meta_path)
    megatron.install(CUDA)
    assert sys.meta_path == before


def test_cuda_after_another_device_is_refused(fresh):
    megatron.install(CPU)
    with pytest.raises(BackendError, match="trains on cpu; cuda needs a process of its own"):
        megatron.install(CUDA)


@pytest.mark.full
def test_torch_stays_as_it_is():
    subprocess.run([sys.executable, "-W", "ignore", "-c", TORCH_STAYS], check=True)


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
