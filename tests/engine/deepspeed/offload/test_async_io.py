"""DeepSpeed's async_io: if it is unavailable, the error names what is missing, before anything is built."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from engine import tiny
from pretrain.bridge import deepspeed as bridge
from pretrain.cpu.backend import CpuBackend
from pretrain.engine.deepspeed.swapping import require_async_io
from pretrain.errors import BackendError

KEY = "engine.zero.offload_optimizer.device"
REMEDY = f"Fix that, or let {KEY} be cpu."


class Builders:
    """Fakes of DeepSpeed's builders of async_io and pin_memory: each compiles to an empty file."""

    def __init__(self, folder, *, libaio=True):
        self.folder = folder
        self.libaio = libaio
        self.compiled = []

    def of(self, name):
        return lambda: _Builder(self, name)


class _Builder:
    def __init__(self, builders, name):
        self.builders = builders
        self.NAME = name

    def is_compatible(self):
        return self.builders.libaio

    def load(self, verbose):
        if not (library := self.builders.folder / self.NAME / f"{self.NAME}.so").exists():
            library.touch()
            self.builders.compiled.append(self.NAME)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with programs c++ and ninja that do nothing, and the given builders; a world of one."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    monkeypatch.setattr("pretrain.engine.extension.time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "environment" / "python"))
    monkeypatch.delenv("CXX", raising=False)
    (tmp_path / "bin").mkdir()
    for name in ("c++", "ninja"):
        (tmp_path / "bin" / name).touch(mode=0o755)
    bridge.install(CpuBackend())
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "all_gather_object", lambda ranks, own: ranks.__setitem__(0, own))

    def put(**options):
        builders = Builders(tmp_path / "extensions", **options)
        monkeypatch.setattr("deepspeed.ops.op_builder.AsyncIOBuilder", builders.of("async_io"))
        monkeypatch.setattr("deepspeed.ops.op_builder.PinMemoryBuilder", builders.of("pin_memory"))
        return builders

    return put


def told():
    lines = []
    require_async_io(KEY, lines.append)
    return lines


def refused():
    with pytest.raises(BackendError) as caught:
        told()
    return str(caught.value).splitlines()


def test_without_libaio_it_is_an_error_that_names_the_package(machine):
    builders = machine(libaio=False)
    assert refused() == [
        (
            f"{KEY}: nvme needs DeepSpeed's async_io, but libaio (package libaio-dev of Debian and Ubuntu, "
            "libaio-devel of Red Hat, libaio of Arch) is missing."
        ),
        REMEDY,
    ]
    assert builders.compiled == []


def test_the_user_is_notified_of_the_compilation_which_happens_once(machine):
    builders = machine()
    assert told() == [
        "compiling DeepSpeed's pin_memory; this is done once and takes less than a minute ...",
        "compiled DeepSpeed's pin_memory in 0 s",
        "compiling DeepSpeed's async_io; this is done once and takes some minutes ...",
        "compiled DeepSpeed's async_io in 0 s",
    ]
    assert told() == []
    assert builders.compiled == ["pin_memory", "async_io"]


@pytest.mark.parametrize("name", ["pin_memory", "async_io"])
def test_a_run_killed_while_compiling_does_not_block_others(name, machine, tmp_path):
    machine()
    lock = tmp_path / "extensions" / name / "lock"  # torch waits until this file is gone
    lock.parent.mkdir(parents=True)
    lock.touch()
    told()
    assert not lock.exists()


def test_a_compiled_extension_still_needs_the_compiler(machine, tmp_path):
    """DeepSpeed looks for libaio whenever it loads async_io, by compiling a program that calls it."""
    machine()
    told()
    (tmp_path / "bin" / "c++").unlink()
    assert refused() == [f"{KEY}: nvme needs DeepSpeed's async_io, but there is no C++ compiler (c++).", REMEDY]


def test_an_error_says_that_deepspeed_has_none_for_the_device(machine, monkeypatch):
    builders = machine()
    monkeypatch.setattr("deepspeed.ops.op_builder.AsyncIOBuilder", builders.of("deepspeed_not_implemented"))
    assert refused()[0].endswith("but DeepSpeed has no async_io for this device.")


def test_an_installed_extension_is_loaded_as_it_is(machine, monkeypatch, tmp_path):
    builders = machine(libaio=False)
    (tmp_path / "extensions" / "async_io").mkdir(parents=True)
    monkeypatch.setitem(sys.modules["deepspeed.git_version_info"].installed_ops, "async_io", True)
    assert told() == []
    assert builders.compiled == ["async_io"]


def test_a_library_missing_on_one_node_is_an_error_on_all(machine, monkeypatch):
    machine()
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather_object", lambda ranks, own: ranks.__setitem__(slice(2), [own, "it is not"]))
    assert refused()[0].endswith("but it is not.")


def test_it_is_loaded_before_anything_is_built(monkeypatch, tmp_path):
    monkeypatch.setattr("deepspeed.ops.op_builder.AsyncIOBuilder", Builders(tmp_path, libaio=False).of("async_io"))
    monkeypatch.setattr("pretrain.engine.build.build", lambda *_, **__: pytest.fail("a model was built"))
    recipe = tiny.tiny(
        "engine={name: deepspeed, zero: {stage: 3}}", f"{KEY}=nvme", f"{KEY[:-7]}.nvme_path={tmp_path / 'nvme'}"
    )
    (tmp_path / "nvme").mkdir()
    with pytest.raises(BackendError, match="libaio"), tiny.engine_of(recipe):
        pass
    assert list((tmp_path / "nvme").iterdir()) == []
