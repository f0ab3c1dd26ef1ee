"""Offers of the cpu backend, and their properties."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from forked_python import client
from pretrain.conformance import examples
from pretrain.cpu import plugin
from pretrain.cpu.dropout import DropoutMask
from pretrain.machine import available_cores
from pretrain.plugins.offer import Absent, Decline, Offer
from pretrain.plugins.requests import Mask


def offered(answers):
    return [answer.name for answer in answers if isinstance(answer, Offer)]


def test_causal_attention_is_stored_up_to_2048_tokens_and_recomputed_beyond():
    assert offered(plugin.pretrain_attention(examples.attention(length=2048))) == ["tiled", "recomputed", "sdpa"]
    assert offered(plugin.pretrain_attention(examples.attention(length=2049))) == ["recomputed", "tiled", "sdpa"]


@pytest.mark.parametrize("mask", [Mask.NONE, Mask.KEY_PADDING, Mask.ARBITRARY])
def test_other_masks_get_torchs_flash_attention(mask):
    answers = plugin.pretrain_attention(examples.attention(mask=mask))
    assert offered(answers) == ["sdpa"]
    assert [answer.reason for answer in answers if isinstance(answer, Decline)] == [
        f"mask {mask}; only causal and documents"
    ] * 2


def test_torchs_flash_attention_declines_dropout_with_the_reason():
    answers = plugin.pretrain_attention(examples.attention(dropout=0.1))
    assert offered(answers) == ["tiled", "recomputed"]
    assert answers[-1].reason == "no dropout in CPU flash attention"


def test_cross_entropy_in_fp16_is_left_to_the_reference():
    request = replace(examples.cross_entropy(torch.float16), in_fp32=False)
    declined = plugin.pretrain_cross_entropy(request)
    assert isinstance(declined, Decline)
    assert declined.reason == "in_fp32 False (precision.fp16_lm_cross_entropy); only True"


def test_stored_and_recomputed_tiles_are_the_same_kernel():
    request = examples.attention(torch.bfloat16, length=300, groups=2, dropout=0.2)
    inputs = [torch.randn(300, 2, n, 16).bfloat16() for n in (4, 2, 2)]
    results = []
    for offer in plugin.pretrain_attention(request)[:2]:
        torch.manual_seed(3)
        leaves = [x.clone().requires_grad_() for x in inputs]
        output = offer.build({})(*leaves)
        torch.rand(5)  # what is drawn in between must not change what the backward pass draws again
        results.append([output, *torch.autograd.grad(output.float().square().sum(), leaves)])
    for stored, recomputed in zip(*results, strict=True):
        assert torch.equal(stored, recomputed)


def test_recomputed_attention_saves_nothing_that_grows_with_the_square():
    sizes = []

    def record(tensor):
        sizes.append(tensor.numel())
        return tensor

    offer = plugin.pretrain_attention(examples.attention(length=300, dropout=0.2))[1]
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        offer.build({})(*(torch.randn(300, 2, 4, 16, requires_grad=True) for _ in range(3)))
    assert sizes == [300 * 2 * 4 * 16] * 3


def test_cross_entropy_puts_the_gradient_where_the_logits_were():
    kernel = plugin.pretrain_cross_entropy(examples.cross_entropy(torch.bfloat16)).build({})
    logits = torch.randn(7, 2, 64).bfloat16().requires_grad_()
    given = logits.clone()
    (grad,) = torch.autograd.grad(kernel(given, torch.zeros(7, 2, dtype=torch.int64)).sum(), given)
    assert grad.data_ptr() == given.data_ptr()


def test_a_second_backward_through_overwritten_logits_is_an_error():
    kernel = plugin.pretrain_cross_entropy(examples.cross_entropy()).build({})
    logits = torch.randn(7, 2, 64, requires_grad=True)
    loss = kernel(logits.clone(), torch.zeros(7, 2, dtype=torch.int64)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("probability", [1e-5, 0.1, 1 / 3, 0.9])
def test_a_dropout_mask_keeps_the_expectation(probability):
    dropout_mask = DropoutMask(probability)
    rate = dropout_mask.draw(torch.Size([1_000_003])).double().mean().item()
    rounded = 1 - 1 / dropout_mask.scale
    assert abs(rounded - probability) <= 2**-16
    assert abs(rate - rounded) < 6 * (rounded * (1 - rounded) / 1e6) ** 0.5


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, 1.5])
def test_a_dropout_mask_rejects_probabilities_that_it_cannot_draw(probability):
    with pytest.raises(ValueError, match="only above 0 and below 1"):
        DropoutMask(probability)


def test_fp16_matmuls_are_fp32_on_a_cpu_without_fp16(monkeypatch):
    monkeypatch.setattr("pretrain.cpu.tiled._multiplies_fp16", lambda: False)
    assert plugin.pretrain_linear(examples.linear(torch.float16)).name == "fp32_matmul"
    assert plugin.pretrain_linear(examples.linear(torch.bfloat16)) is None


def test_the_kit_does_not_miss_fp32_matmuls_on_a_cpu_with_fp16(monkeypatch):
    """Such as an Intel Xeon of the fourth generation; `TestCoverage` fails where a hook names no kernel at all."""
    monkeypatch.setattr("pretrain.cpu.tiled._multiplies_fp16", lambda: True)
    answer = plugin.pretrain_linear(examples.linear(torch.float16))
    assert (answer.name, answer.reason) == ("fp32_matmul", "this CPU has matmuls in fp16")
    assert isinstance(answer.reason, Absent)


def test_the_backend_describes_this_machine():
    backend = plugin.pretrain_backend()
    described = backend.describe()
    assert described["cores"] == str(available_cores())
    assert described["threads"] == str(torch.get_num_threads())
    assert backend.peak_flops(torch.float32) is None
    assert backend.device(3) == torch.device("cpu")
    assert not backend.point_to_point().batched
    assert not backend.supports(torch.int8)


def test_memory_is_that_of_this_process():
    backend = plugin.pretrain_backend()
    memory = backend.memory(reset_peak=True)
    assert 2**20 < memory.allocated <= memory.peak <= memory.total
    assert memory.total <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.full
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc has the switch")
def test_freed_memory_stays_with_the_process():
    """In a process of its own: the switch cannot be undone."""
    program = """
import torch
from pretrain.cpu import backend, plugin
def is_given_back():
    tensor = torch.ones(2**26)
    held = backend.memory_of_process(reset_peak=False).allocated
    del tensor
    return held - backend.memory_of_process(reset_peak=False).allocated > 2**27
print(is_given_back())
plugin.pretrain_backend().device(0)
print(is_given_back())
"""
    process = client.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.communicate()[0].split() == ["True", "False"]


@pytest.mark.full
def test_importing_the_plugin_changes_nothing():
    program = "import os, torch; before = dict(os.environ), torch.get_num_threads(); import pretrain.cpu.plugin; "
    program += "assert before == (dict(os.environ), torch.get_num_threads())"
    subprocess.run([sys.executable, "-c", program], check=True)
