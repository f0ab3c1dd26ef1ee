"""Adam: torch's is always there, apex's where its extension is. The real apex was not run."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import OptimizerRequest
from pretrain.reference.adam import ForeachAdam, FusedAdam
from pretrain_cuda import optimizer

REQUEST = OptimizerRequest(device_type="cuda", dtype=torch.float32, name="adamw")


def test_torchs_fused_adam_comes_first(monkeypatch):
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda module: False)
    fused, apex = optimizer.answers(REQUEST)
    assert isinstance(fused, Offer)
    assert fused.build({}).adam is FusedAdam
    assert isinstance(apex, Decline)
    assert apex.reason == "amp_C is not installed; apex brings it when it is built with --cpp_ext --cuda_ext"


def test_apexs_is_found_by_its_extension_and_its_class(monkeypatch):
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda module: module == "amp_C")
    assert optimizer.answers(REQUEST)[1].reason.startswith("apex.optimizers is not installed")
    package, module = ModuleType("apex"), ModuleType("apex.optimizers")
    module.FusedAdam = ForeachAdam
    monkeypatch.setitem(sys.modules, "apex", package)
    monkeypatch.setitem(sys.modules, "apex.optimizers", module)
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda module: True)
    offered = optimizer.answers(REQUEST)[1]
    assert isinstance(offered, Offer)
    assert offered.build({}).adam is ForeachAdam
    fused, declined = optimizer.answers(replace(REQUEST, exp_avg_sq_dtype=torch.bfloat16))
    assert declined.reason == "exp_avg_sq_dtype bfloat16; apex's FusedAdam keeps its state in fp32"
    assert issubclass(fused.build({}).adam, FusedAdam)


def test_the_norm_is_a_tensor_on_the_device(device):
    norm = optimizer.answers(OptimizerRequest(device_type=device.type, dtype=torch.float32))[0].build({}).gradient_norm
    tensors = [torch.full((3, 5), 2.0, device=device), torch.ones(4096, device=device)]
    assert norm(tensors).device.type == device.type
    assert norm(tensors).item() == pytest.approx((15 * 4 + 4096) ** 0.5, rel=1e-6)


def test_on_a_gpu_the_norm_of_all_tensors_is_one_list_operation(monkeypatch):
    norm = optimizer.answers(OptimizerRequest(device_type="cuda", dtype=torch.float32))[0].build({}).gradient_norm
    tensors = [torch.arange(30.0).view(3, 10), torch.full((5000,), 0.25), torch.tensor(2.0).bfloat16()]
    expected = torch.cat([tensor.double().flatten() for tensor in tensors]).norm().item()
    calls, foreach = [], torch._foreach_norm
    monkeypatch.setattr(torch, "_foreach_norm", lambda *given, **more: calls.append(given) or foreach(*given, **more))
    monkeypatch.setattr(torch, "cat", None)
    total = norm(tensors)
    assert (total.dtype, total.shape, len(calls)) == (torch.float32, (), 1)
    assert total.item() == pytest.approx(expected, rel=1e-6)
