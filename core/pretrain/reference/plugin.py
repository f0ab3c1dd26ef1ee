"""The reference kernels as a plugin: an ordinary plugin, in every run, with the lowest priority."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pretrain.plugins import hookimpl
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import Mask
from pretrain.plugins.signatures import OptimizerKernels
from pretrain.reference import adam, norm
from pretrain.reference.attention import Attention, ByDocument, CausalBlocks
from pretrain.reference.cross_entropy import CrossEntropy
from pretrain.reference.elementwise import ACTIVATIONS, BiasDropoutAdd, rotate
from pretrain.reference.experts import GroupedLinear, Router, permutation
from pretrain.reference.linear import Linear
from pretrain.reference.muon import orthogonalize
from pretrain.reference.softmax import Softmax

if TYPE_CHECKING:
    from pretrain.plugins import requests
    from pretrain.plugins.offer import Answer

NAME = "reference"
CONTRACT = (1, 4)


@hookimpl
def pretrain_attention(request: requests.AttentionRequest) -> Answer:
    """Offer attention with stored weights and the negotiated softmax; and, for causal masks, by blocks.

    Documents are computed one by one, with plain torch's softmax, whose sizes may be any.
    """
    if request.mask is Mask.DOCUMENTS:
        each = replace(request, mask=Mask.CAUSAL)
        return [
            Offer(name=NAME, kind="softmax", build=lambda _: ByDocument(Attention(each))),
            Offer(name="triangle", kind="triangle", build=lambda _: ByDocument(CausalBlocks(each))),
        ]
    softmax = Offer(name=NAME, kind="softmax", build=lambda built: Attention(request, built.get("softmax")))
    if request.mask is not Mask.CAUSAL:
        reason = f"mask {request.mask}; only {Mask.CAUSAL} and {Mask.DOCUMENTS}"
        return [softmax, Decline(name="triangle", kind="triangle", reason=reason)]
    return [softmax, Offer(name="triangle", kind="triangle", build=lambda _: CausalBlocks(request))]


@hookimpl
def pretrain_softmax(request: requests.SoftmaxRequest) -> Answer:
    """Plain torch."""
    return Offer(name=NAME, build=lambda _: Softmax(request))


@hookimpl
def pretrain_norm(request: requests.NormRequest) -> Answer:
    """Plain torch, statistics in fp32."""
    return Offer(name=NAME, build=lambda _: norm.KINDS[request.kind](request))


@hookimpl
def pretrain_rotary(request: requests.RotaryRequest) -> Answer:  # noqa: ARG001  one kernel for all
    """Plain torch."""
    return Offer(name=NAME, build=lambda _: rotate)


@hookimpl
def pretrain_activation(request: requests.ActivationRequest) -> Answer:
    """Plain torch."""
    return Offer(name=NAME, build=lambda _: ACTIVATIONS[request.kind])


@hookimpl
def pretrain_bias_dropout_add(request: requests.BiasDropoutAddRequest) -> Answer:
    """Plain torch."""
    return Offer(name=NAME, build=lambda _: BiasDropoutAdd(request))


@hookimpl
def pretrain_cross_entropy(request: requests.CrossEntropyRequest) -> Answer:
    """Plain torch, two all-reduces."""
    return Offer(name=NAME, build=lambda _: CrossEntropy(request))


@hookimpl
def pretrain_linear(request: requests.LinearRequest) -> Answer:
    """Plain torch; communication overlaps the weight gradient."""
    return Offer(name=NAME, build=lambda _: Linear(request))


@hookimpl
def pretrain_grouped_linear(request: requests.GroupedLinearRequest) -> Answer:
    """Plain torch, one matmul for each expert; the counts are read on the host."""
    return Offer(name=NAME, build=lambda _: GroupedLinear(request))


@hookimpl
def pretrain_moe_permute(request: requests.MoePermuteRequest) -> Answer:
    """Plain torch, by index, of static shapes."""
    return Offer(name=NAME, build=lambda _: permutation(request))


@hookimpl
def pretrain_router(request: requests.RouterRequest) -> Answer:
    """Plain torch."""
    return Offer(name=NAME, build=lambda _: Router(request))


@hookimpl
def pretrain_optimizer(request: requests.OptimizerRequest) -> Answer:
    """Plain torch, lists of tensors."""
    norm = adam.gradient_norm(request.device_type)
    kernels = OptimizerKernels(
        adam=adam.keeping(adam.ForeachAdam, request), gradient_norm=norm, orthogonalize=orthogonalize
    )
    return Offer(name=NAME, build=lambda _: kernels)


@hookimpl
def pretrain_collectives(request: requests.CollectivesRequest) -> Answer:  # noqa: ARG001  torch's defaults for all
    """No options."""
    return Offer(name=NAME, build=lambda _: no_options)


def no_options(group_name: str) -> None:
    """A `ProcessGroupOptionsFn` that keeps torch's defaults for every group."""
