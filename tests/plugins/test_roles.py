"""A role has a kernel of its own; without one in the recipe it follows its operation. Windows of older plugins."""

from __future__ import annotations

import pytest
import torch

from engine import tiny
from engine.layouts import LLAMA, QWEN3
from pretrain.conformance.examples import attention
from pretrain.errors import KernelError
from pretrain.model.requests import kernel_requests
from pretrain.plugins.contract import keep
from pretrain.plugins.host.manager import load
from pretrain.plugins.negotiation.choosing import choose
from pretrain.plugins.negotiation.kernels import negotiate
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import Mask


def chosen(*overrides):
    """Return the kernel of each operation and role."""
    recipe = tiny.tiny(*overrides)
    requests = kernel_requests(recipe, "cpu", tiny.VOCAB_SIZE)
    choices = choose(load("cpu"), requests, recipe.kernels.chosen(), "allow")
    return {choice.request.key: choice.offer.name for choice in choices}


def test_the_norm_of_heads_follows_norm_unless_it_is_named():
    assert chosen(*QWEN3, "kernels.norm=reference")["norm@head"] == "reference"
    named = chosen("model.qk_layernorm=true", "kernels.norm=reference", "kernels.norm@head=torch")
    assert (named["norm"], named["norm@head"]) == ("reference", "torch")
    assert "norm@head" not in chosen(*LLAMA)


def test_the_output_layer_has_a_kernel_of_its_own_only_where_it_is_named():
    plugins, recipe = load("cpu"), tiny.tiny("kernels.linear@output=reference")
    assert "linear@output" not in chosen()
    kernels = negotiate(plugins, kernel_requests(recipe, "cpu", 300), recipe.kernels.chosen(), "allow")
    assert kernels.linear_of("output") is kernels.built["linear@output"] is not kernels.linear
    kernels = negotiate(plugins, kernel_requests(tiny.tiny(), "cpu", 300), {}, "allow")
    assert kernels.linear_of("output") is kernels.linear


def test_a_kernel_that_an_operation_names_and_its_role_cannot_have_is_an_error_that_says_both_keys():
    recipe = tiny.tiny(*QWEN3)
    heads = [request for request in kernel_requests(recipe, "cpu", tiny.VOCAB_SIZE) if request.key == "norm@head"]
    with pytest.raises(KernelError, match=r"kernels\.norm: no plugin has a kernel or kind 'fast'") as raised:
        choose(load("cpu"), heads, {"norm": "fast"}, "allow")
    assert "Give kernels.norm@head: auto, or one of them." in str(raised.value)


def test_a_plugin_of_an_older_contract_declines_a_role():
    norm, head = (
        next(each for each in kernel_requests(tiny.tiny(*QWEN3), "cpu", 300) if each.key == key)
        for key in ("norm", "norm@head")
    )
    offer = Offer(name="theirs", build=lambda built: torch.nn.functional.rms_norm)
    assert keep(offer, norm, (1, 2)) is offer
    assert keep(offer, head, (1, 2)) == Decline(
        name="theirs", reason="written for contract 1.2, which has no role head"
    )


def test_a_plugin_of_an_older_contract_declines_a_window():
    (window,) = (
        each for each in kernel_requests(tiny.tiny("model.window_size=9"), "cpu", 300) if each.key == "attention"
    )
    offer = Offer(name="theirs", build=lambda built: print)
    assert keep(offer, window, (1, 3)) is offer
    assert keep(offer, window, (1, 2)).reason == "written for contract 1.2, which has no window 9"


@pytest.mark.parametrize("changed", [{"mask": Mask.ARBITRARY}, {"mask": Mask.NONE}, {"window": 0}])
def test_a_window_is_of_a_causal_mask(changed):
    with pytest.raises(ValueError, match="a window is at least 1, and needs mask causal"):
        attention(**{"window": 9} | changed)
