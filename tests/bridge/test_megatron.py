"""Installing the bridge: once, for one device, before megatron.core, and without side effects elsewhere."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from pretrain.bridge.megatron.loader import PACKAGE, Finder

from pretrain.bridge import megatron
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
