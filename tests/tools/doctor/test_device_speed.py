"""Free memory of a device, and the speed of its matmuls against the datasheet."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pretrain.cpu.backend import CpuBackend
from pretrain.tools.doctor import device_speed
from pretrain.tools.doctor.device_speed import GIB, MatmulSpeed, examine_memory, examine_speed, free_memory, usual_flops
from pretrain.tools.doctor.finding import Verdict

CPU = torch.device("cpu")


class Rated(CpuBackend):
    """A device with a datasheet."""

    def peak_flops(self, dtype):
        return 312e12 if dtype is torch.bfloat16 else None


def speed(flops=200e12, dtype=torch.bfloat16, *, repeats=True, is_finite=True):
    return SimpleNamespace(flops=flops, dtype=dtype, rows=8192, repeats=repeats, is_finite=is_finite)


@pytest.fixture
def own_memory(monkeypatch):
    """Give the device memory of its own, of which so many GiB are free."""

    def give(free, total=80):
        module = SimpleNamespace(mem_get_info=lambda: (free * GIB, total * GIB))
        monkeypatch.setattr(device_speed.torch, "get_device_module", lambda device: module)

    return give


@pytest.mark.parametrize(("free", "verdict"), [(79, Verdict.OK), (73, Verdict.OK), (60, Verdict.LOOK)])
def test_memory_that_another_process_uses_is_shown(own_memory, free, verdict):
    own_memory(free)
    (finding,) = examine_memory(CPU)
    assert (finding.verdict, finding.text) == (verdict, f"{free}.0 of 80.0 GiB free")


def test_a_device_without_memory_of_its_own_uses_the_machines():
    free, total = free_memory(CPU)
    assert 0 < free < total
    (finding,) = examine_memory(CPU)
    assert finding.verdict is Verdict.OK  # other programs may use the machine's


def test_speed_below_half_of_the_datasheets_is_shown():
    (fine,) = examine_speed(speed(), Rated())
    (slow,) = examine_speed(speed(100e12), Rated())
    assert (fine.verdict, fine.text) == (
        Verdict.OK,
        "200 TFLOP/s in bfloat16, matrices of 8192 rows; datasheet 312",
    )
    assert (slow.verdict, slow.text[-24:]) == (Verdict.LOOK, "datasheet 312, 32% of it")


def test_without_a_datasheet_no_speed_is_too_slow():
    (finding,) = examine_speed(speed(1.0, torch.float32), Rated())
    assert (finding.verdict, finding.remedy) == (Verdict.OK, "")


@pytest.mark.parametrize(
    ("fault", "verdict", "text"),
    [
        ({"repeats": False}, Verdict.LOOK, "a repeated matmul gave other bits"),
        ({"is_finite": False}, Verdict.WRONG, "a matmul of finite matrices gave inf or nan"),
    ],
)
def test_a_device_that_computes_wrongly(fault, verdict, text):
    _, finding = examine_speed(speed(**fault), Rated())
    assert (finding.verdict, finding.text) == (verdict, text)


def test_a_dtype_without_matmuls_of_its_own_leaves_kernels_the_speed_of_fp32(quick, monkeypatch):
    measured = MatmulSpeed(CPU, torch.float32)
    assert measured.repeats
    assert measured.is_finite
    assert measured.flops > 1e6
    monkeypatch.setattr(device_speed, "MatmulSpeed", lambda device, dtype: speed(5e11, dtype))
    assert usual_flops(speed(1e9, torch.float16), CPU) == 5e11
    assert usual_flops(speed(9e11, torch.float16), CPU) == 9e11
    assert usual_flops(speed(1e9, torch.float32), CPU) == 1e9
