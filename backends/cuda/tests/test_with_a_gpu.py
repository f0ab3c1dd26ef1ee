"""Results of these tests on a machine with a GPU: those about machines without one, and the kit of kernels for a CPU.

A GPU is not needed: it is made up, as far as a name decides. What runs on one is seen by `make test-device`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kit import attentions

HERE = Path(__file__).parent
KERNELS = ("flash_attn", "norm", "sdpa", "transformer_engine")
FILES = (
    *(HERE / f"test_{name}.py" for name in ("attention", "backend", "explain", "linear", "optimizer")),
    *(HERE / "kernels" / f"test_{name}.py" for name in KERNELS),
)


@pytest.mark.full
def test_tests_that_need_none_pass_where_one_is():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "kit.gpu_here"]
    command += ["-k", "not TestAttention and not TestNorm", *map(str, FILES)]
    done = subprocess.run(command, cwd=HERE, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.full
@pytest.mark.parametrize(("kernels", "where"), [("sdpa", "cpu"), ("flash_attn", "cpu"), ("triangle", "cuda")])
def test_kernels_of_the_cpu_are_tested_there(monkeypatch, kernels, where):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert getattr(attentions, kernels).pretrain_backend().device_type == where
