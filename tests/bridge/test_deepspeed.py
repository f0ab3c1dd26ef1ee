"""DeepSpeed on a backend: installed once, for one device, without side effects; its groups are released after a run."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from bridge import zero
from pretrain.bridge import deepspeed as bridge
from pretrain.cpu.backend import CpuBackend
from pretrain.errors import BackendError

TESTS = Path(__file__).parents[1]
CPU = CpuBackend()
NPU = SimpleNamespace(name="ascend", device_type="npu", process_group="hccl")
FLOAT64 = {
    "zero/utils.py": ["return torch.double"],  # what `is_fp64_supported` decides
    "zero/stage_1_and_2.py": ["dtypes = [torch.half, torch.float, torch.double, torch.bfloat16]"],
    "engine.py": ["CASTABLE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)"],
}
"""DeepSpeed's lines that name the dtype, of those that a training runs."""
NOTHING_IS_LEFT = """
import logging, os, subprocess, sys, warnings
import torch, torch.distributed as dist
from pretrain.bridge import deepspeed as bridge, megatron
from pretrain.cpu.backend import CpuBackend

def started(*args, **kwargs):
    raise AssertionError(f"a process was started: {args}")

def settings():
    root = logging.getLogger()
    return {
        "environment": dict(os.environ),
        "logging": (root.level, list(root.handlers)),
        "warnings": list(warnings.filters),
        "imports": (list(sys.meta_path), list(sys.path)),
        "streams": (sys.stdout, sys.stderr, sys.excepthook),
        "torch": (torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }

megatron.install(CpuBackend())
subprocess.Popen = started
before = settings()
bridge.install(CpuBackend())
after = settings()
for name, value in before.items():
    assert after[name] == value, (name, value, after[name])

from bridge import zero
for case in (zero.Case(0), zero.Case(1, "bf16"), zero.BF16_OPTIMIZER, zero.Case(2, "fp16"), zero.Case(3, "bf16")):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    zero.train(case, CpuBackend())
    dist.destroy_process_group()
assert "LOCAL_RANK" not in os.environ
assert "torch._inductor.compile_fx" not in sys.modules, "what torch.compile compiles with was imported"
"""

APEX = "import torch\nclass optimizers: FusedAdam = torch.optim.AdamW\n"
"""What DeepSpeed looks for in apex."""
WITH_APEX = """
import torch, torch.distributed as dist
from bridge import zero
from pretrain.bridge import deepspeed as bridge
from pretrain.bridge.deepspeed.zero_state import MAIN, zero_state
from pretrain.cpu.backend import CpuBackend

deepspeed = bridge.install(CpuBackend())
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
bridge.connect(CpuBackend())
import apex
model = torch.nn.Linear(3, 2)
optimizer = apex.optimizers.FusedAdam(model.parameters())
_, made, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=zero.Case(0, "bf16").config())
print(zero_state(made, 0, ()).whole(model.weight, MAIN).shape)
"""


@contextmanager
def world_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def left_in_deepspeed(kind):
    """Names of DeepSpeed's modules that hold an object of a type, or a collection with one."""
    return [
        f"{name}.{key}"
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "deepspeed"
        for key, value in list(vars(module).items())
        if any(isinstance(item, kind) for item in (value, *_items(value)))
    ]


def _items(value):
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple, set)) else []


@pytest.mark.full
def test_nothing_is_left_behind_compiled_or_printed():
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    run = subprocess.run(
        [sys.executable, "-c", NOTHING_IS_LEFT],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.full
def test_bf16_without_zero_has_the_same_optimizer_around_an_adam_of_apex(tmp_path):
    (tmp_path / "apex.py").write_text(APEX)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITH_APEX],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{tmp_path}", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "torch.Size([2, 3])\n", "")


def test_the_accelerator_is_deepspeeds_own_and_asks_the_backend():
    deepspeed = bridge.install(CPU)
    accelerator = deepspeed.accelerator.get_accelerator()
    assert isinstance(accelerator, deepspeed.accelerator.cpu_accelerator.CPU_Accelerator)
    assert accelerator.communication_backend_name() == "gloo"
    assert accelerator.supported_dtypes() == [torch.float32, torch.float16, torch.bfloat16]
    assert accelerator.device_count() == 1


def test_installing_twice_keeps_the_accelerator():
    deepspeed = bridge.install(CPU)
    once = deepspeed.accelerator.get_accelerator()
    again = CpuBackend()
    assert bridge.install(again) is deepspeed
    assert deepspeed.accelerator.get_accelerator() is once
    assert once.backend is again


def test_another_device_in_the_same_process_is_refused():
    bridge.install(CPU)
    with pytest.raises(BackendError, match="DeepSpeed runs on cpu in this process; npu needs a process of its own"):
        bridge.install(NPU)


def test_a_deepspeed_that_was_imported_for_another_device_is_refused(monkeypatch):
    bridge.install(CPU)
    from deepspeed.accelerator import real_accelerator

    monkeypatch.setattr(real_accelerator, "ds_accelerator", SimpleNamespace(device_name=lambda: "cuda"))
    with pytest.raises(BackendError, match="DeepSpeed runs on cuda in this process; cpu needs a process of its own"):
        bridge.install(CPU)


def test_a_contradicting_choice_of_the_user_is_refused_and_an_equal_one_kept(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    with pytest.raises(BackendError, match=r"DS_ACCELERATOR is cuda, but the backend cpu computes on cpu\.\nUnset"):
        bridge.install(CPU)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    bridge.install(CPU)
    assert os.environ["DS_ACCELERATOR"] == "cpu"


def test_a_missing_deepspeed_is_an_error_with_the_remedy(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(BackendError) as error:
        bridge.install(CPU)
    assert str(error.value) == (
        'engine.name: deepspeed needs DeepSpeed, which is not installed.\npip install "pretrain[deepspeed]"'
    )


@pytest.mark.parametrize("version", ["0.19.7", "0.18.9", "0.20.0", "1.0"])
def test_another_version_is_refused(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(BackendError, match=f"deepspeed {version} is installed; .* needs 0.19.8 or a later 0.19"):
        bridge.install(CPU)


@pytest.mark.parametrize("version", ["0.19.8", "0.19.12+cu130"])
def test_a_later_release_of_the_same_version_is_taken(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    bridge.install(CPU)


def test_a_broken_deepspeed_is_distinguished_from_a_missing_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(BackendError, match=r"deepspeed 0.19.\d+ is installed, but its import failed: "):
        bridge.install(CPU)


def test_warnings_go_where_all_others_go_but_not_those_about_our_optimizer_and_weights_that_are_not_stepped(caplog):
    bridge.install(CPU)
    logger = logging.getLogger("DeepSpeed")
    logger.warning("**** You are using ZeRO with an untested optimizer, proceed with caution *****")
    logger.warning("FP16 params for CPUAdam may not work on AMD CPUs")
    logger.warning("FP16 params for CPUAdam may not work on AMD CPUs")
    logger.warning("pytorch allocator cache flushes since last step")
    logger.info("DeepSpeed info: version=0.19.8")
    assert [record.getMessage() for record in caplog.records] == ["pytorch allocator cache flushes since last step"]
    assert logger.handlers == []


def test_the_local_rank_is_set_while_connected_and_an_existing_one_kept(monkeypatch):
    bridge.install(CPU)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with world_of_one():
        bridge.connect(CPU)
        bridge.connect(CPU)
        assert os.environ["LOCAL_RANK"] == "0"
        bridge.disconnect()
        assert "LOCAL_RANK" not in os.environ
        monkeypatch.setenv("LOCAL_RANK", "0")
        bridge.connect(CPU)
        bridge.disconnect()
        assert os.environ["LOCAL_RANK"] == "0"


def test_disconnecting_releases_every_process_group():
    deepspeed = bridge.install(CPU)
    with world_of_one():
        bridge.connect(CPU)
        mpu = zero.Alone()
        deepspeed.initialize(
            model=torch.nn.Linear(2, 2), optimizer=None, config=zero.Case(0).config(), dist_init_required=False
        )
        deepspeed.checkpointing.configure(mpu, partition_activations=True)
        assert left_in_deepspeed(dist.ProcessGroup)
        bridge.disconnect()
        assert left_in_deepspeed(dist.ProcessGroup) == []
        assert not deepspeed.comm.is_initialized()


def test_disconnecting_releases_the_model():
    bridge.install(CPU)
    with world_of_one():
        zero.train(zero.Case(3), CPU)
    assert left_in_deepspeed(torch.nn.Module) == []


def test_disconnecting_without_a_connection_is_allowed():
    bridge.install(CPU)
    bridge.disconnect()
    bridge.disconnect()


def test_no_other_line_of_deepspeed_makes_float64():
    """A line that an upgrade brings may sum it over ranks: look, and handle it in the bridge."""
    runtime = Path(bridge.install(CPU).__file__).parent / "runtime"
    files = [*runtime.glob("*.py"), *(runtime / "zero").glob("*.py"), *(runtime / "fp16").glob("*.py")]
    found = {}
    for file in files:
        lines = [line.strip() for line in file.read_text().splitlines() if not line.strip().startswith("#")]
        named = [line for line in lines if re.search(r"float64|DoubleTensor|torch\.double|\.double\(", line)]
        if named:
            found[file.relative_to(runtime).as_posix()] = named
    assert found == FLOAT64
