"""The checks of one rank: what they look at, that a failing one does not end them, and each fault made on purpose."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from pretrain.cpu.backend import CpuBackend
from pretrain.errors import BackendError
from pretrain.plugins.backend import Memory, Remark
from pretrain.tools.doctor.finding import Verdict
from tools.doctor.found import only

pytestmark = pytest.mark.usefixtures("quick")

KERNELS = ["attention", "norm", "activation", "bias_dropout_add", "cross_entropy", "linear", "optimizer"]

HALF_THE_BIAS = """
@hookimpl
def pretrain_norm(request):
    return Offer(name="hasty", build=lambda built: norm)

def norm(x, weight, bias):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias / 2)
"""

RAISES = """
@hookimpl
def pretrain_norm(request):
    return Offer(name="broken", build=lambda built: norm)

def norm(x, weight, bias):
    raise RuntimeError("no kernel image is available for\\nthis device")
"""


def test_nothing_is_wrong_here_and_every_kernel_of_the_recipe_is_tried(examined):
    said = []
    own = examined(doing=said.append)
    assert [f for f in own.findings if f.verdict is Verdict.WRONG] == []
    tried = [f.check.removeprefix("kernel ") for f in own.findings if f.check.startswith("kernel ")]
    assert tried == KERNELS
    assert list(own.kernels) == [*KERNELS[:1], *KERNELS[1:]]
    assert own.device == torch.device("cpu")
    dropping = "attention", "bias_dropout_add"
    signs = [(f"kernel {name}", *([f"kernel {name} with dropout"] if name in dropping else [])) for name in KERNELS]
    assert said == [
        *("device", "versions", "environment", "limits", "requirements", "device", "matmul"),
        *("negotiation of kernels", *chain.from_iterable(signs)),
    ]


def test_rotary_softmax_and_the_last_layer_are_tried_where_the_recipe_has_them(examined):
    own = examined(
        "model.position_embedding_type=rope",
        "kernels.attention=softmax",
        "model.apply_query_key_layer_scaling=true",
        "precision.dtype=fp16",
        "precision.initial_loss_scale=1024",
    )
    found = {f.check: f.verdict for f in own.findings if f.check.startswith("kernel ")}
    assert {"kernel softmax", "kernel rotary", "kernel attention of layer 2"} <= set(found)
    assert set(found.values()) <= {Verdict.OK, Verdict.LOOK}


def test_a_kernel_with_a_wrong_result_is_named_with_its_error(site, examined):
    site.plugin("hasty", HALF_THE_BIAS)
    findings = examined().findings
    wrong = only([f for f in findings if f.verdict is Verdict.WRONG], "kernel norm")
    assert wrong.text.startswith("output off by 0.")
    assert "gradient of bias off by 0.5, 1e-05 allowed" in wrong.text
    assert "kernels.norm" in wrong.remedy
    assert "`pretrain conformance --backend cpu`" in wrong.remedy
    assert "norm hasty" in only(findings, "kernels").text


def test_a_kernel_that_raises_is_named_and_the_others_are_tried(site, examined):
    site.plugin("broken", RAISES)
    findings = examined().findings
    wrong = only(findings, "kernel norm")
    assert (wrong.verdict, wrong.text) == (
        Verdict.WRONG,
        "RuntimeError: no kernel image is available for this device",
    )
    assert only(findings, "kernel optimizer").verdict is Verdict.OK


def test_a_missing_device_is_a_finding_with_the_backends_remedy(site, examined):
    site.backend("fake", availability="Unavailable('the driver shows none', 'Start the container with --gpus all.')")
    own = examined(backend="fake")
    wrong = only(own.findings, "device")
    assert wrong.text == "backend 'fake' (pretrain-fake 1.0) has no usable device: the driver shows none"
    assert wrong.remedy == "Start the container with --gpus all."
    assert own.device is None
    assert [f for f in own.findings if f.check.startswith(("kernel", "matmul"))] == []
    assert {"versions", "environment", "open files"} <= {f.check for f in own.findings}


def test_a_backend_that_breaks_is_a_finding(examined, monkeypatch):
    def device(self, local_rank):
        msg = "rank 7 of this node has no device: 4 are visible.\nStart at most 4 ranks on a node."
        raise BackendError(msg)

    monkeypatch.setattr(CpuBackend, "device", device)
    wrong = only(examined().findings, "device")
    assert (wrong.verdict, wrong.text) == (Verdict.WRONG, "rank 7 of this node has no device: 4 are visible.")
    assert wrong.remedy == "Start at most 4 ranks on a node."


def test_a_dtype_that_the_device_does_not_have_is_wrong(examined, monkeypatch):
    monkeypatch.setattr(CpuBackend, "supports", lambda self, dtype: dtype is not torch.bfloat16)
    wrong = [f for f in examined("precision.dtype=bf16").findings if f.verdict is Verdict.WRONG]
    assert wrong[0].text.endswith("does not support bfloat16 on this device.")
    assert wrong[0].remedy == "Set precision.dtype to one of: fp32, fp16"


def test_the_backend_judges_its_own_software(examined, monkeypatch):
    remark = Remark(subject="driver", verdict="wrong", text="driver 450, CUDA 13 needs 580", remedy="Update it.")
    monkeypatch.setattr(CpuBackend, "health", lambda self: [remark])
    monkeypatch.setattr(CpuBackend, "device", lambda self, local_rank: 1 / 0)  # without one it is asked too
    wrong = only(examined().findings, "driver")
    assert (wrong.verdict, wrong.text, wrong.remedy) == (Verdict.WRONG, remark.text, "Update it.")


def test_an_answer_of_a_wrong_kind_names_the_member_and_what_is_allowed(examined, monkeypatch):
    monkeypatch.setattr(CpuBackend, "health", lambda self: ["well"])
    wrong = only([f for f in examined().findings if f.verdict is Verdict.WRONG], "versions")
    assert wrong.text == "backend 'cpu' (pretrain 0.1.0): CpuBackend.health() returned list: ['well']"
    assert wrong.remedy.startswith("Allowed: a sequence of Remark.")


def test_memory_of_a_wrong_kind_names_the_backend(examined, monkeypatch):
    monkeypatch.setattr(CpuBackend, "memory", lambda self, reset_peak=False: Memory("much", None, None))
    assert "Allowed: a Memory of bytes or None" in only(examined().findings, "device").remedy
