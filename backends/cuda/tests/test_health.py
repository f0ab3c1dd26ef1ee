"""Health of GPUs and of their software, as nvidia-smi and the installed packages say."""

from __future__ import annotations

import pytest
import torch

from pretrain.plugins import installed
from pretrain_cuda import environment, software
from pretrain_cuda.backend import CudaBackend

WELL = "GPU-1a2b-3c4d, 0, 700.00, 700.00, 0, Not Active, Not Active, Not Active"
ILL = "GPU-5e6f-7a8b, 1, 500.00, 700.00, 12, Active, Not Active, Active"
UNKNOWN = "GPU-9c9c-0d0d, 2, [N/A], [N/A], [N/A], Not Active, [N/A], Not Active"


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Install a program that answers with lines; an old one refuses the newer names of its fields."""

    def install(*lines, is_old=False):
        refusal = 'case "$1" in *clocks_event_reasons*) echo "Field is not a valid field"; exit 2;; esac\n'
        answer = "\n".join(f'echo "{line}"' for line in lines)
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{refusal if is_old else ''}{answer}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return install


def remarks_of(uuid=""):
    states = [state for state in software.gpu_states() if uuid in state["uuid"]]
    return [(remark.subject, remark.verdict, remark.text) for state in states for remark in software.gpu_remarks(state)]


@pytest.mark.parametrize("is_old", [False, True])
def test_a_gpu_that_is_well(nvidia_smi, is_old):
    nvidia_smi(WELL, is_old=is_old)
    assert remarks_of() == [("health", "ok", "no memory errors, no slowed clocks")]


def test_a_gpu_with_faults(nvidia_smi):
    nvidia_smi(WELL, ILL)
    assert remarks_of("5e6f-7a8b") == [
        (
            "memory errors",
            "wrong",
            "GPU 1 has had 12 uncorrected memory errors since the driver was loaded",
        ),
        ("clocks", "look", "GPU 1 is slowed down: hw_thermal_slowdown, sw_thermal_slowdown"),
        ("clocks", "look", "GPU 1 is limited to 500 W, its default is 700 W"),
    ]


def test_what_a_gpu_does_not_report_is_no_fault(nvidia_smi):
    nvidia_smi(UNKNOWN)
    assert remarks_of() == [("health", "ok", "no memory errors, no slowed clocks")]


def test_nvidia_smi_that_is_absent_or_fails_says_nothing(nvidia_smi, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert software.gpu_states() == []
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert software.gpu_states() == []


@pytest.mark.parametrize(
    ("cuda", "driver", "verdict"),
    [
        ("13.0", "580.65.06", "ok"),
        ("13.0", "570.86.15", "wrong"),
        ("12.8", "525.60.13", "ok"),
        ("12.8", "470.82", "wrong"),
        ("99.0", "1", "ok"),  # an unknown pair is not judged
    ],
)
def test_drivers_and_the_cuda_that_they_serve(cuda, driver, verdict):
    assert software.driver_remark(cuda, driver, is_used=False).verdict == verdict


def test_a_driver_that_is_too_old_says_which_one_is_needed():
    remark = software.driver_remark("13.0", "570.86.15", is_used=False)
    assert remark.text == "driver 570.86.15, torch built for CUDA 13.0, which needs driver 580 or later"
    assert remark.remedy.startswith("Install driver 580 or later")


def test_a_driver_that_is_too_old_and_serves_a_gpu_may_have_cuda_compat():
    remark = software.driver_remark("13.0", "570.86.15", is_used=True)
    assert remark.verdict == "look"
    assert remark.text.endswith("which needs driver 580 or later, or cuda-compat; the GPU works")


def test_a_library_that_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setattr(installed, "has", lambda module: module in {"apex", "flash_attn"})
    monkeypatch.setattr(installed, "provider", lambda name: f"{name} 1.0")
    failures = {"flash_attn": "ImportError: undefined symbol", "apex": ""}
    monkeypatch.setattr(installed, "import_failure", failures.__getitem__)
    broken, listed = software.health(None, "")
    assert (broken.verdict, broken.text) == (
        "look",
        "flash-attn 1.0 cannot be imported, and its kernels are declined: ImportError: undefined symbol",
    )
    assert listed.text == "flash-attn 1.0, apex 1.0; not installed: triton, transformer-engine"


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built with CUDA")
def test_without_a_gpu_the_backend_answers():
    assert {remark.verdict for remark in CudaBackend().health()} <= {"ok", "look"}


def test_variables_have_an_effect_in_words():
    assert CudaBackend.effective_variables is environment.EFFECTIVE
    assert {"NCCL_P2P_DISABLE", "CUDA_LAUNCH_BLOCKING", "NCCL_IB_DISABLE"} <= set(environment.EFFECTIVE)
