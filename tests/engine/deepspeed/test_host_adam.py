"""Adam of the host: DeepSpeed's is compiled once, with a notice; torch's replaces it where the recipe says so."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from engine import tiny
from pretrain.bridge import deepspeed as bridge
from pretrain.cpu.backend import CpuBackend
from pretrain.engine.deepspeed.extension import CPU_ADAM, load_extension
from pretrain.engine.deepspeed.host_adam import host_adam
from pretrain.errors import KernelError

KEY = "engine.zero.offload_optimizer.cpu_adam"
COMPILING = "compiling DeepSpeed's CPU Adam; this is done once and takes about a minute ..."
REMEDY = f"Fix that, or set {KEY} to torch (its fused AdamW), or to auto (torch's where DeepSpeed's is not available)."
COMPILED = "compiled DeepSpeed's CPU Adam in 0 s"


class Compiler:
    """Fake of DeepSpeed's CPUAdamBuilder: it compiles to an empty file."""

    NAME = "cpu_adam"

    def __init__(self, folder, failure=None, seconds=0.0):
        self.library = folder / "cpu_adam" / "cpu_adam.so"
        self.failure = failure
        self.seconds = seconds
        self.loaded = 0
        self.compiled = 0

    def __call__(self):
        return self

    def load(self, verbose):
        assert not verbose
        self.lock_was_there = (self.library.parent / "lock").exists()
        self.environment = dict(os.environ)
        self.loaded += 1
        if not self.library.exists():
            time.sleep(self.seconds)
            if self.failure:
                raise RuntimeError(self.failure)
            self.library.touch()
            self.compiled += 1


@pytest.fixture(autouse=True)
def _surroundings(tmp_path, monkeypatch):
    """A folder of extensions that is empty, programs c++ and ninja that do nothing, DeepSpeed, and a world of one."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    monkeypatch.setattr("pretrain.engine.deepspeed.extension.time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "environment" / "python"))
    monkeypatch.delenv("CXX", raising=False)
    for name in ("c++", "ninja"):
        program(tmp_path, name)
    bridge.install(CpuBackend())
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)


def program(tmp_path, name):
    path = tmp_path / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Let the given compiler be DeepSpeed's."""

    def put(**options):
        compiler = Compiler(tmp_path / "extensions", **options)
        monkeypatch.setattr("deepspeed.ops.op_builder.CPUAdamBuilder", compiler)
        return compiler

    return put


def choose(cpu_adam="deepspeed"):
    """Return the name of the class, and the lines shown to the user."""
    told = []
    recipe = tiny.tiny("engine={name: deepspeed, zero: {stage: 3}}", f"{KEY}={cpu_adam}", f"{KEY[:-9]}.device=cpu")
    adam = host_adam(recipe, told.append)
    return adam.__name__, told


def refused(cpu_adam="deepspeed"):
    """Return the lines of the error."""
    with pytest.raises(KernelError) as caught:
        choose(cpu_adam)
    return str(caught.value).splitlines()


def test_the_user_is_notified_of_the_compilation_which_happens_once(compiler):
    ours = compiler()
    assert choose() == ("HostAdam", [COMPILING, COMPILED])
    assert choose() == ("HostAdam", [])
    assert (ours.compiled, ours.loaded) == (1, 2)


def test_torchs_adam_is_used_without_checking_the_compiler(compiler):
    ours = compiler()
    assert choose("torch") == ("FusedAdam", [])
    assert ours.loaded == 0


def test_auto_prefers_deepspeeds(compiler):
    compiler()
    assert choose("auto") == ("HostAdam", [COMPILING, COMPILED])


@pytest.mark.parametrize(
    ("missing", "problem"), [("c++", "there is no C++ compiler (c++)"), ("ninja", "ninja is missing")]
)
class TestWithout:
    def test_it_is_an_error_that_names_the_other_values(self, missing, problem, compiler, tmp_path):
        ours = compiler()
        (tmp_path / "bin" / missing).unlink()
        assert refused() == [
            f"{KEY}: deepspeed is compiled at its first use, but {problem}.",
            REMEDY,
        ]
        assert ours.loaded == 0

    def test_auto_uses_torchs_and_logs_the_reason(self, missing, problem, compiler, tmp_path):
        compiler()
        (tmp_path / "bin" / missing).unlink()
        told = [f"torch's fused AdamW is used instead of DeepSpeed's CPU Adam: {problem}"]
        assert choose("auto") == ("FusedAdam", told)


def test_the_compiler_is_the_one_that_torch_calls(compiler, monkeypatch, tmp_path):
    compiler()
    (tmp_path / "bin" / "c++").rename(tmp_path / "bin" / "g++")
    assert "there is no C++ compiler (c++)" in refused()[0]
    monkeypatch.setenv("CXX", "absent -O2")
    assert "there is no C++ compiler (absent -O2)" in refused()[0]
    monkeypatch.setenv("CXX", "g++ -O2")
    assert choose()[0] == "HostAdam"


def test_a_compiled_extension_needs_no_compiler(compiler, tmp_path):
    ours = compiler()
    choose()
    assert "TORCH_DONT_CHECK_COMPILER_ABI" not in ours.environment
    (tmp_path / "bin" / "c++").unlink()
    assert choose() == ("HostAdam", [])
    assert ours.environment["TORCH_DONT_CHECK_COMPILER_ABI"] == "1"  # it would warn of the compiler that is missing


def test_ninja_is_the_one_beside_this_python_although_its_environment_is_not_activated(compiler, tmp_path):
    ours = compiler()
    (tmp_path / "environment").mkdir()
    program(tmp_path, "ninja").rename(tmp_path / "environment" / "ninja")
    before = dict(os.environ)
    assert choose()[0] == "HostAdam"
    assert ours.environment["PATH"] == f"{tmp_path}/environment:{tmp_path}/bin"
    assert dict(os.environ) == before


def test_an_error_of_the_compiler_is_shown_by_its_own_line(compiler):
    compiler(
        failure="Error building extension 'cpu_adam': [1/3] c++ -c cpu_adam.cpp\na.h:1:9: fatal error: b.h: none\n"
    )
    assert refused()[0].endswith("but compiling failed: a.h:1:9: fatal error: b.h: none.")


def test_a_folder_that_cannot_be_written_is_named(compiler, monkeypatch, tmp_path):
    compiler()
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file"))
    assert f"its folder cannot be written: [Errno 20] Not a directory: '{tmp_path}/file/cpu_adam'" in refused()[0]


def test_a_run_killed_while_compiling_does_not_block_others(compiler, tmp_path):
    ours = compiler()
    lock = tmp_path / "extensions" / "cpu_adam" / "lock"  # torch waits until this file is gone
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert choose() == ("HostAdam", [COMPILING, COMPILED])
    assert not ours.lock_was_there


@pytest.mark.parametrize("failure", [None, "cpu_adam.cpp:3: error: no"])
def test_one_rank_compiles_and_the_others_wait_for_what_it_has_made_or_failed_with(failure, compiler):
    ours = compiler(failure=failure, seconds=2.0)
    start = threading.Barrier(3)

    def rank(_):
        start.wait()
        return load_extension(CPU_ADAM, lambda _: None)

    with ThreadPoolExecutor(3) as ranks:
        problems = list(ranks.map(rank, range(3)))
    if failure is None:
        assert (problems, ours.compiled, ours.loaded) == ([None] * 3, 1, 3)
    else:
        assert (problems, ours.loaded) == ([f"compiling failed: {failure}"] * 3, 1)


def test_all_ranks_step_with_one_adam_although_only_some_nodes_have_a_compiler(compiler, monkeypatch):
    compiler()
    elsewhere = "there is no C++ compiler (c++)"
    others = SimpleNamespace(combined=lambda own, combine: combine([own, elsewhere]))
    monkeypatch.setattr("pretrain.collectives.tree_of_world", lambda: others)
    name, told = choose("auto")
    assert name == "FusedAdam"
    assert told[-1].endswith(elsewhere)
    assert elsewhere in refused()[0]


def test_an_installed_extension_is_loaded_as_it_is(compiler, monkeypatch, tmp_path):
    ours = compiler()
    ours.library.parent.mkdir(parents=True)
    monkeypatch.setitem(sys.modules["deepspeed.git_version_info"].installed_ops, "cpu_adam", True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose() == ("HostAdam", [])
    assert ours.loaded == 1


class Extension:
    """Fake of the compiled extension: it records the step numbers."""

    def __init__(self):
        self.steps = []

    def load(self):
        return self

    def create_adam(self, *options):
        pass

    def destroy_adam(self, number):
        pass

    def adam_update(self, number, step, *tensors_and_options):
        self.steps.append(step)


def test_a_resumed_run_says_which_step_deepspeeds_adam_is_at(compiler, monkeypatch):
    compiler()
    extension = Extension()
    monkeypatch.setattr("deepspeed.ops.adam.cpu_adam.CPUAdamBuilder", lambda: extension)
    monkeypatch.setattr("cpuinfo.get_cpu_info", dict)  # it starts processes
    adam = host_adam(tiny.tiny("engine={name: deepspeed, zero: {stage: 3}}"), lambda _: None)
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    optimizer = adam([weight], lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, adam_w_mode=True)
    assert optimizer.taken == 0
    optimizer.step()
    optimizer.taken = 41
    optimizer.step()
    assert extension.steps == [1, 42]
