"""The GPU benchmarks: without a GPU they say so, and with tiny sizes they run on a CPU."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from structure.sources import ROOT

BENCHMARKS = ("gpu_train", "gpu_layers", "gpu_shares")
SMALL = {
    "gpu_train": ["--rounds", "1", "--micro-batch-size", "1", "--micro-batches", "2"],
    "gpu_layers": ["--rounds", "1"],
    "gpu_shares": ["--micro-batch-size", "1", "--micro-batches", "1"],
}


@pytest.mark.full
@pytest.mark.skipif(torch.accelerator.is_available(), reason="there may be a GPU here")
@pytest.mark.parametrize(
    "benchmark",
    [*BENCHMARKS, "gpu_elementwise", "gpu_softmax"],
)
def test_without_a_gpu_it_says_so_in_two_lines(run, benchmark):
    done = run(f"gpu.{benchmark}", "--keep")
    assert done.returncode == 2
    first, _ = done.stderr.splitlines()
    assert first.startswith("backend 'cuda' (pretrain-cuda 0.1.0) has no usable device: ")
    assert done.stdout == ""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_it_runs(run, benchmark):
    done = run(f"gpu.{benchmark}", "--tiny", *SMALL[benchmark])
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert {"date", "versions", "device"} <= set(result)
    kernels = json.dumps(result)
    assert '"attention": "' in kernels
    if benchmark == "gpu_train":
        assert all(
            0 < result[name]["last_loss"] < 10 for name in ("pretrain", "compiled_layers", "compiled", "megatron")
        )
        assert result["speed over compiled"] > 0
        assert result["megatron"]["spec"] == "local"
        assert result["speed over megatron"].startswith("none: ")


@pytest.mark.full
def test_results_of_tiny_sizes_are_not_kept(run):
    done = run("gpu.gpu_train", "--tiny", "--keep")
    assert done.returncode == 2
    assert "not allowed with argument" in done.stderr


@pytest.fixture
def root_on_path(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)


def test_a_system_gets_the_setting_as_it_was(monkeypatch, root_on_path):
    from benchmarks.training.setting import Setting

    setting = Setting("bf16", torch.get_num_threads(), "cuda", (("seq", 8), ("vocab", 50257)), 2, 3)
    monkeypatch.setattr(sys, "argv", ["system", setting.to_json()])
    assert Setting.given() == setting
    assert setting.tokens == 2 * 3 * 8
    assert setting.padded_vocab == 50304
    assert [list(tokens.shape) for tokens in setting.batches()] == [[2, 9]] * 3


def test_utilisation_is_model_flops_over_the_peak(root_on_path):
    from benchmarks.gpu.gpu_train import GPT2_345M, utilisation
    from benchmarks.training.setting import Setting

    setting = Setting("bf16", 1, "cuda", tuple(GPT2_345M.items()), 16, 4)
    # Narayanan et al. 2021, equation 3, with 3 passes instead of 4 and the k keys that a token sees, (s + 1) / 2 in the
    # mean, instead of s: 72 s l h^2 (1 + k / 6h + V / 12lh) a sequence.
    length, layers, hidden, vocab = 1024, 24, 1024, 50304
    keys = (length + 1) / 2
    flops = 64 * 72 * length * layers * hidden**2 * (1 + keys / (6 * hidden) + vocab / (12 * layers * hidden))
    assert utilisation(setting, [0.1, 0.25, 9.0], 989.4e12) == pytest.approx(flops / 0.25 / 989.4e12, abs=1e-4)
    assert utilisation(setting, [0.25], None) is None
