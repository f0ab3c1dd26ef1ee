"""A backend whose kernels are wrong in one corner each: a dtype, a head size, a length, strides, dropout, a scale."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch.nn import functional as F  # noqa: N812

from pretrain.cpu.backend import CpuBackend
from pretrain.plugins import CONTRACT, hookimpl
from pretrain.plugins.backend import PointToPoint
from pretrain.plugins.offer import Absent, Decline, Offer
from pretrain.plugins.requests import Mask
from pretrain.plugins.signatures import Documents, OptimizerKernels
from pretrain.reference.adam import ForeachAdam, gradient_norm
from pretrain.reference.attention import Attention, ByDocument
from pretrain.reference.elementwise import BiasDropoutAdd
from pretrain.reference.linear import Linear
from pretrain.reference.norm import LayerNorm, RmsNorm
from pretrain.reference.softmax import Softmax

NORMS = {"LayerNorm": LayerNorm, "RMSNorm": RmsNorm}


def offer(name, kernel):
    return Offer(name=name, build=lambda built: kernel)


class Corners(CpuBackend):
    name = "corners"

    def point_to_point(self):
        return PointToPoint(batched=True)  # gloo, too, keeps the order of the messages to one peer


class CornerKernels:
    CONTRACT = CONTRACT

    @hookimpl
    def pretrain_backend(self):
        return Corners()

    @hookimpl
    def pretrain_attention(self, request):
        return [
            *(spoiled(name, request, applies) for name, applies in CORNERS.items()),
            offer("own_scale", Attention(replace(request, scale=request.head_size**-0.5))),
            offer("drops_other_weights_backward", drops_other_weights_backward(request)),
            offer("drops_the_same_in_every_head", drops_the_same_in_every_head(request)),
            offer("first_documents_for_all", first_documents_for_all(request)),
        ]

    @hookimpl
    def pretrain_softmax(self, request):
        calls = itertools.count()

        def drifts(scores, mask=None):
            noise = next(calls) % 2 * 2**-5 if request.dtype is torch.bfloat16 else 0
            return Softmax(request)(scores, mask) * (1 + noise)

        def drops_keys(scores, mask=None):
            weights = Softmax(request)(scores, mask)
            return torch.cat((weights[..., :4096], torch.zeros_like(weights[..., 4096:])), dim=-1)

        kernels = [offer("drifts_in_bf16", drifts), offer("only_4096_keys", drops_keys)]
        if request.keys % 64 == 0:  # as a kernel with tiles has it
            kernels.append(offer("ignores_the_gradient_of_scale", ignores_the_gradient_of_scale(request)))
        return kernels

    @hookimpl
    def pretrain_norm(self, request):
        kernel = NORMS[request.kind](request)

        def writes_its_input(x, weight, bias=None):
            y = kernel(x, weight, bias)
            x.data.mul_(1.05)
            return y

        def looks_at_a_value(x, weight, bias=None):
            return kernel(x, weight, bias) * (1.0 if x.abs().max().item() >= 0 else 0.0)

        def wrong_when_deterministic(x, weight, bias=None):
            return kernel(x, weight, bias) * 1.1

        return [
            offer("writes_its_input", writes_its_input),
            offer("looks_at_a_value", looks_at_a_value),
            offer("own_epsilon", NORMS[request.kind](replace(request, epsilon=1e-5))),
            offer("wrong_when_deterministic", wrong_when_deterministic)
            if request.deterministic
            else Decline(name="wrong_when_deterministic", reason="not deterministic; only that"),
            Decline(name="takes_nothing", reason=f"hidden size {request.hidden_size}; only 11"),
            Decline(name="is_not_here", reason=Absent("libnorm is not installed; pip install libnorm")),
        ]

    @hookimpl
    def pretrain_bias_dropout_add(self, request):
        kernel = BiasDropoutAdd(request)

        def forgets_its_seed(x, bias, residual, *, training=True):
            if not torch.is_grad_enabled():
                torch.rand(1)
            return kernel(x, bias, residual, training=training)

        def unscaled_in_fp16(x, bias, residual, *, training=True):
            y = kernel(x, bias, residual, training=training)
            if training and request.dropout and x.dtype is torch.float16:
                return residual + (y - residual) * (1 - request.dropout)
            return y

        def reads_its_output(x, bias, residual, *, training=True):
            return ReadsItsOutput.apply(kernel(x, bias, residual, training=training))

        kernels = (forgets_its_seed, unscaled_in_fp16, reads_its_output)
        return [offer(each.__name__, each) for each in kernels]

    @hookimpl
    def pretrain_linear(self, request):
        kernel = Linear(request)

        def sums_ranks_in_fp32_alone(x, weight, bias=None, group=None):
            return kernel(x, weight, bias, group if x.dtype is torch.float32 else None)

        return offer("sums_ranks_in_fp32_alone", sums_ranks_in_fp32_alone)

    @hookimpl
    def pretrain_optimizer(self, request):
        def in_16_bits(tensors):
            if not tensors:
                return torch.zeros(())
            return torch.stack([tensor.norm() for tensor in tensors]).norm().float()

        def with_host(tensors):
            return torch.tensor(gradient_norm(request.device_type)(tensors).item())

        norms = {"norm_in_16_bits": in_16_bits, "norm_on_the_host": with_host}
        return [offer(name, OptimizerKernels(adam=ForeachAdam, gradient_norm=norm)) for name, norm in norms.items()]

    @hookimpl
    def pretrain_rotary(self, request):
        return []

    @hookimpl
    def pretrain_collectives(self, request):
        return offer("gloo", lambda group_name: None)


CORNERS = {
    "only_in_bf16": lambda request, query, training: request.dtype is torch.bfloat16,
    "only_with_heads_of_128": lambda request, query, training: request.head_size == 128,
    "only_over_2048": lambda request, query, training: query.shape[0] > 2048,
    "only_over_4096": lambda request, query, training: query.shape[0] > 4096,
    "only_when_not_contiguous": lambda request, query, training: not query.is_contiguous(),
    "only_under_dropout": lambda request, query, training: training and request.dropout > 0,
    "only_all_at_once": lambda request, query, training: all(
        applies(request, query, training)
        for name, applies in CORNERS.items()
        if name not in {"only_all_at_once", "only_over_4096"}  # over 4096 tokens the forward pass alone is tested
    ),
}


def spoiled(name, request, applies):
    """An attention that is a tenth too large if `applies` is true."""

    def attention(query, key, value, mask=None, *, training=True):
        context = Attention(request)(query, key, value, mask, training=training)
        return context * 1.1 if applies(request, query, training) else context

    return offer(name, attention)


def drops_other_weights_backward(request):
    """Drop other weights backward, like a flash kernel whose backward pass continues from another offset."""

    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.tensors = [x.detach().requires_grad_() for x in tensors]
            return Attention(request)(*ctx.tensors)

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                context = Attention(request)(*ctx.tensors)
            return torch.autograd.grad(context, ctx.tensors, grad)

    def attention(query, key, value, mask=None, *, training=True):
        if training and request.dropout and mask is None:
            return Recomputed.apply(query, key, value)
        return Attention(request)(query, key, value, mask, training=training)

    return attention


def drops_the_same_in_every_head(request):
    def attention(query, key, value, mask=None, *, training=True):
        if not (training and request.dropout) or request.mask is not Mask.NONE:
            return Attention(request)(query, key, value, mask, training=training)
        shared = query.shape[2] // key.shape[2]
        key, value = (x.repeat_interleave(shared, dim=2) for x in (key, value))
        scores = torch.einsum("qbnd,kbnd->bnqk", query, key) * request.scale
        weights = torch.softmax(scores.float(), dim=-1).to(query.dtype)
        kept = F.dropout(torch.ones(scores.shape[2:], dtype=query.dtype), request.dropout)
        return torch.einsum("bnqk,kbnd->qbnd", weights * kept, value).flatten(2)

    return attention


def first_documents_for_all(request):
    kernel = Attention(request)
    if request.mask is Mask.DOCUMENTS:
        kernel = ByDocument(Attention(replace(request, mask=Mask.CAUSAL)))

    def attention(query, key, value, mask=None, *, training=True):
        if request.mask is Mask.DOCUMENTS:
            first = int((mask.key_ends <= len(key)).sum())  # each sample ends with a document that has keys
            starts = torch.arange(query.shape[1], dtype=torch.int32)[:, None]
            ends = ((mask.query_ends, len(query)), (mask.key_ends, len(key)))
            of_all = [torch.cat([each[:1], (starts * length + each[1:first]).flatten()]) for each, length in ends]
            mask = Documents.of(torch.stack(of_all))
        return kernel(query, key, value, mask, training=training)

    return attention


def ignores_the_gradient_of_scale(request):
    def softmax(scores, mask=None):
        scaled = scores.detach() * request.scale + (scores - scores.detach())
        return Softmax(replace(request, scale=1.0))(scaled, mask)

    return softmax


class ReadsItsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        ctx.output = y = y.clone()
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad + 0 * ctx.output


CORNER = CornerKernels()
