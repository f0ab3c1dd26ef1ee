"""Memory for what ZeRO-3 reads from files: too little is an error message, where DeepSpeed would abort."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from engine import tiny
from pretrain.bridge import deepspeed as bridge
from pretrain.cpu.backend import CpuBackend
from pretrain.engine.deepspeed import swapping
from pretrain.engine.deepspeed.swapping import require_async_io
from pretrain.errors import BackendError, RecipeError

OPTIMIZER = "engine.zero.offload_optimizer"
PARAM = "engine.zero.offload_param"
FILES = (
    "engine={name: deepspeed, zero: {stage: 3}}",
    f"{OPTIMIZER}.device=nvme",
    f"{OPTIMIZER}.nvme_path=nvme",
    f"{PARAM}.device=nvme",
    f"{PARAM}.nvme_path=nvme",
    f"{PARAM}.buffer_size=300",
)


def groups(*sizes):
    """Return parameter groups of weights of which this rank has so many elements."""
    return [{"params": [SimpleNamespace(ds_tensor=SimpleNamespace(ds_numel=size)) for size in sizes]}]


def refused(sizes, *overrides):
    with pytest.raises(RecipeError) as caught:
        swapping.require_room(tiny.tiny(*FILES, *overrides), groups(*sizes))
    return str(caught.value)


@pytest.fixture
def lockable(monkeypatch):
    """Let the system lock so many bytes; note what was asked."""
    asked = []

    def put(limit):
        monkeypatch.setattr(swapping, "can_lock", lambda size: asked.append(size) or size <= limit)
        return asked

    return put


def test_fast_init_needs_buffers_that_hold_a_sub_group():
    """A sub-group ends with the weight that reaches `sub_group_size`."""
    overrides = ("engine.zero.sub_group_size=200", f"{OPTIMIZER}.fast_init=true")
    assert refused([150, 151, 10], *overrides) == (
        f"{PARAM}.buffer_size: 300 is too small for {OPTIMIZER}.fast_init, which reads a sub-group of 301 elements "
        f"into a buffer.\nGive at least that, or a smaller engine.zero.sub_group_size, or {OPTIMIZER}.fast_init: false."
    )
    swapping.require_room(tiny.tiny(*FILES, *overrides), groups(150, 150, 10, 250))
    swapping.require_room(tiny.tiny(*FILES, overrides[0]), groups(150, 151))


def test_buffers_of_the_state_are_as_large_as_the_largest_sub_group(lockable):
    asked = lockable(4 * 4 * 400)
    recipe = tiny.tiny(*FILES, "engine.zero.sub_group_size=300")
    swapping.require_room(recipe, [*groups(100, 100, 200), *groups(50)])
    assert asked == [4 * 4 * 400]


def test_memory_that_may_not_be_locked_is_refused(lockable):
    lockable(2**20)
    assert refused([2**20]) == (
        f"{OPTIMIZER}: nvme needs 16 MiB of locked memory for each rank; the system refuses it (ulimit -l).\n"
        f"Raise the limit (ulimit -l unlimited; docker run --ulimit memlock=-1), or lower {OPTIMIZER}.buffer_count or "
        "engine.zero.sub_group_size."
    )


def test_buffers_of_weights_are_looked_at_before_the_model_is_built(lockable, monkeypatch, tmp_path):
    asked = lockable(2**20)
    monkeypatch.setattr(swapping, "require_async_io", lambda *_: None)
    path = (f"{OPTIMIZER}.nvme_path={tmp_path}", f"{PARAM}.nvme_path={tmp_path}", "precision.dtype=bf16")
    monkeypatch.setattr("pretrain.engine.build.build", lambda *_, **__: pytest.fail("a model was built"))
    recipe = tiny.tiny(*FILES, *path, f"{PARAM}.buffer_size={2**20}")
    message = rf"{PARAM}: nvme needs 10 MiB .*\n.*buffer_count or buffer_size\."
    with pytest.raises(RecipeError, match=message), tiny.engine_of(recipe):
        pass
    assert asked == [5 * 2 * 2**20]
    assert list(tmp_path.iterdir()) == []


def test_the_system_says_what_may_be_locked():
    assert swapping.can_lock(0)
    assert swapping.can_lock(4096)
    assert not swapping.can_lock(2**60)


class Model:
    """Weights, of which some are in files."""

    def __init__(self, *locations):
        self.weights = [SimpleNamespace(ds_tensor=SimpleNamespace(final_location=location)) for location in locations]

    def parameters(self):
        return self.weights


class Optimizer:
    """Sub-groups, of which some are in files."""

    def __init__(self, *in_files):
        self.fp32_partitioned_groups_flat = in_files

    def _swappable_optimizer_subgroup(self, number):
        return self.fp32_partitioned_groups_flat[number]


@pytest.mark.parametrize(
    ("model", "optimizer", "told"),
    [
        (Model("not-nvme", "nvme"), Optimizer(False, True), []),
        (
            Model("not-nvme", None),
            Optimizer(False, False),
            [
                f"{OPTIMIZER}: nothing is in files; every sub-group has less than 1 MiB for this rank",
                (
                    f"{PARAM}: no weight is in a file; they fit into max_in_cpu: 1000000000 elements of host memory, "
                    "or have less than 1 MiB each"
                ),
            ],
        ),
    ],
)
def test_the_user_is_notified_if_nothing_is_in_files(model, optimizer, told):
    lines = []
    swapping.report_in_memory(tiny.tiny(*FILES), model, optimizer, lines.append)
    assert lines == told


KEY = "engine.zero.offload_optimizer.device"
REMEDY = f"Fix that, or set {KEY} to cpu."


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
    monkeypatch.setattr("pretrain.engine.deepspeed.extension.time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "environment" / "python"))
    monkeypatch.delenv("CXX", raising=False)
    (tmp_path / "bin").mkdir()
    for name in ("c++", "ninja"):
        (tmp_path / "bin" / name).touch(mode=0o755)
    bridge.install(CpuBackend())
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)

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


def io_refused():
    with pytest.raises(BackendError) as caught:
        told()
    return str(caught.value).splitlines()


def test_without_libaio_it_is_an_error_that_names_the_package(machine):
    builders = machine(libaio=False)
    assert io_refused() == [
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
    assert io_refused() == [f"{KEY}: nvme needs DeepSpeed's async_io, but there is no C++ compiler (c++).", REMEDY]


def test_an_error_says_that_deepspeed_has_none_for_the_device(machine, monkeypatch):
    builders = machine()
    monkeypatch.setattr("deepspeed.ops.op_builder.AsyncIOBuilder", builders.of("deepspeed_not_implemented"))
    assert io_refused()[0].endswith("but DeepSpeed has no async_io for this device.")


def test_an_installed_extension_is_loaded_as_it_is(machine, monkeypatch, tmp_path):
    builders = machine(libaio=False)
    (tmp_path / "extensions" / "async_io").mkdir(parents=True)
    monkeypatch.setitem(sys.modules["deepspeed.git_version_info"].installed_ops, "async_io", True)
    assert told() == []
    assert builders.compiled == ["async_io"]


def test_a_library_missing_on_one_node_is_an_error_on_all(machine, monkeypatch):
    machine()
    others = SimpleNamespace(combined=lambda own, combine: combine([own, "it is not"]))
    monkeypatch.setattr("pretrain.collectives.tree_of_world", lambda: others)
    assert io_refused()[0].endswith("but it is not.")


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
