"""The backend in docs/writing-a-backend.md is the one of docs/example-backend, and it works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pretrain.plugins.host import manager
from pretrain.plugins.host.members import require_device
from pretrain.plugins.negotiation.kernels import negotiate
from pretrain.plugins.requests import NormRequest

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "example-backend"
PROJECT = EXAMPLE / "pyproject.toml"
PLUGIN = EXAMPLE / "src" / "pretrain_example" / "plugin.py"


@pytest.mark.parametrize(("language", "file"), [("toml", PROJECT), ("python", PLUGIN)])
def test_the_guide_shows_the_files_as_they_are(language, file):
    blocks = re.findall(rf"```{language}\n(.*?)```", (DOCS / "writing-a-backend.md").read_text(), re.DOTALL)
    assert file.read_text() in blocks


def test_the_example_stays_short():
    assert len(PLUGIN.read_text().splitlines()) <= 50


def norm(dtype: torch.dtype, kind: str = "LayerNorm", weight_dtype: torch.dtype | None = None) -> NormRequest:
    return NormRequest(
        device_type="cpu", dtype=dtype, kind=kind, hidden_size=33, epsilon=1e-5, weight_dtype=weight_dtype or dtype
    )


@pytest.fixture
def plugins(site, reference):
    site.project(EXAMPLE)
    return manager.load("example")


def test_it_is_a_backend_with_a_device(plugins):
    assert plugins.provider == "pretrain-example 0.1.0"
    assert "threads" in require_device(plugins).detail
    assert plugins.backend.device(0) == torch.device("cpu")
    assert plugins.backend.memory(reset_peak=True).peak is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_its_kernel_is_taken_and_computes_a_layer_norm(plugins, dtype):
    kernels = negotiate(plugins, [norm(dtype)], {}, "forbid")
    x, weight, bias = torch.randn(5, 33, dtype=dtype), torch.randn(33, dtype=dtype), torch.randn(33, dtype=dtype)
    wide = x.double()
    normal = (wide - wide.mean(-1, keepdim=True)) * (wide.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
    expected = (normal * weight.double() + bias.double()).to(dtype)
    torch.testing.assert_close(kernels.norm(x, weight, bias), expected)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (norm(torch.float32, kind="RMSNorm"), "kind RMSNorm, only LayerNorm"),
        (norm(torch.bfloat16, weight_dtype=torch.float32), "input in torch.bfloat16, weights in torch.float32"),
    ],
)
def test_it_declines_what_it_cannot_do(plugins, request_, reason):
    (row,) = negotiate(plugins, [request_], {}, "allow").table.rows
    assert row.kernel == "reference"
    assert row.rejected[0].why == f"declined: {reason}"
