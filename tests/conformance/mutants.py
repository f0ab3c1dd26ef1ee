"""A backend all of whose kernels are wrong, each by a plausible mistake."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from torch.nn import functional as F  # noqa: N812

from conformance import wrong_experts as experts
from conformance import wrong_quantization, wrong_states
from pretrain.cpu.backend import CpuBackend
from pretrain.plugins import CONTRACT, hookimpl
from pretrain.plugins.backend import Memory, PointToPoint
from pretrain.plugins.offer import Offer
from pretrain.plugins.requests import Mask
from pretrain.plugins.signatures import Documents, OptimizerKernels
from pretrain.plugins.stand_in import stand_in
from pretrain.reference.adam import ForeachAdam, gradient_norm
from pretrain.reference.attention import Attention, ByDocument
from pretrain.reference.cross_entropy import CrossEntropy
from pretrain.reference.elementwise import rotate
from pretrain.reference.muon import orthogonalize
from pretrain.reference.norm import LayerNorm, RmsNorm
from pretrain.reference.softmax import Softmax


def offer(name, kernel):
    return Offer(name=name, build=lambda built: kernel)


def wrong_documents(request):
    """Kernels for documents and for fewer queries than keys, as an off-by-one or a misread library makes them."""
    if request.mask is not Mask.DOCUMENTS:
        right = None if request.mask is Mask.ARBITRARY else Attention(replace(request, window=None))

        def aligned_at_first(query, key, value, mask=None, *, training=True):
            return right(query, key[: query.shape[0]], value[: query.shape[0]], mask, training=training)

        return [offer("aligned_at_first", aligned_at_first)] if request.keys else []

    right = ByDocument(Attention(replace(request, mask=Mask.CAUSAL)))

    def shifted(documents, change):
        ends = [documents.query_ends_on_host, documents.key_ends_on_host]
        return Documents.of(torch.tensor([change(each) for each in ends], dtype=torch.int32))

    def ends_one_late(query, key, value, documents, *, training=True):
        late = shifted(documents, lambda ends: [0, *(min(end + 1, ends[-1]) for end in ends[1:])])
        return right(query, key, value, late, training=training)

    def sees_the_document_before(query, key, value, documents, *, training=True):
        return right(query, key, value, shifted(documents, lambda ends: [0, *ends[2::2], ends[-1]]), training=training)

    return [offer("ends_one_late", ends_one_late), offer("sees_the_document_before", sees_the_document_before)]


class WrongBackend(CpuBackend):
    name = "mutant"

    def memory(self, *, reset_peak=False):
        return Memory(allocated=super().memory().allocated, peak=0, total=super().memory().total)


class WrongKernels:
    CONTRACT = CONTRACT

    @hookimpl
    def pretrain_backend(self):
        return WrongBackend()

    @hookimpl
    def pretrain_softmax(self, request):
        def uniform_rows(scores, mask=None):
            if mask is None:
                return Softmax(request)(scores)
            return torch.softmax((scores * request.scale).masked_fill(mask, -10000.0), dim=-1)

        def own_noise(scores, mask=None):
            return Softmax(request)(scores, mask) + torch.rand((), device=scores.device) * 1e-7

        return [offer("uniform_rows", uniform_rows), offer("own_noise", own_noise)]

    @hookimpl
    def pretrain_attention(self, request):
        def ignores_mask(query, key, value, mask=None, *, training=True):
            return Attention(replace(request, mask=Mask.CAUSAL))(query, key, value, training=training)

        def ignores_dropout(query, key, value, mask=None, *, training=True):
            return Attention(replace(request, dropout=0.0))(query, key, value, mask)

        window = request.window and request.window + 1  # as many keys before the query's own, and that one too
        return [
            offer("ignores_mask", ignores_mask),
            offer("ignores_dropout", ignores_dropout),
            offer("sees_one_more", Attention(replace(request, window=window))),
            *wrong_documents(request),
        ]

    @hookimpl
    def pretrain_norm(self, request):
        kind = {"LayerNorm": LayerNorm, "RMSNorm": RmsNorm}[request.kind]

        def in_16_bits(x, weight, bias=None):
            if request.kind == "LayerNorm":
                x = x - x.mean(-1, keepdim=True)
            y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + request.epsilon) * weight
            return (y if bias is None else y + bias).to(x.dtype)

        right = kind(request)
        keeping = stand_in(lambda y: (y.view_as(y), [torch.empty_like(y)]))

        def with_workspace(x, weight, bias=None):
            workspace = x.new_empty(64 * x.numel())
            y = right(x, weight, bias)
            del workspace
            return y

        return [
            offer("no_epsilon", kind(replace(request, epsilon=1e-12))),
            offer("in_16_bits", in_16_bits),
            offer("keeps_the_last_call", lambda x, w, b=None: WorkspaceNorm.apply(x, w, b, request, "one workspace")),
            offer("spoils_what_it_keeps", lambda x, w, b=None: WorkspaceNorm.apply(x, w, b, request, "in place")),
            Offer(name="keeps_one_more", build=lambda _: right, fake=lambda _: lambda **given: keeping(right(**given))),
            Offer(name="hides_workspace", build=lambda _: with_workspace, fake=lambda _: right),
        ]

    @hookimpl
    def pretrain_rotary(self, request):
        def interleaved(x, cos, sin):
            size = cos.shape[-1]
            pairs = x[..., :size].unflatten(-1, (-1, 2))
            turned = torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)
            return torch.cat((x[..., :size] * cos + turned * sin, x[..., size:]), dim=-1).to(x.dtype)

        def by_angles(x, cos, sin):
            length = torch.hypot(cos, sin)
            return rotate(x, cos / length, sin / length)

        return [offer("interleaved", interleaved), offer("by_angles", by_angles)]

    @hookimpl
    def pretrain_activation(self, request):
        def tanh_for_erf(x, bias=None):
            x = x if bias is None else x + bias
            if request.kind != "swiglu":
                return F.gelu(x, approximate="tanh")
            first, second = x.chunk(2, dim=-1)
            return F.silu(first) * second

        return offer("tanh_for_erf", tanh_for_erf)

    @hookimpl
    def pretrain_bias_dropout_add(self, request):
        generator = torch.Generator().manual_seed(0)

        def drops_in_evaluation(x, bias, residual, *, training=True):
            return residual + F.dropout(x if bias is None else x + bias, request.dropout)

        def own_generator(x, bias, residual, *, training=True):
            x = x if bias is None else x + bias
            if training and request.dropout:
                x = x * (torch.rand(x.shape, generator=generator) >= request.dropout) / (1 - request.dropout)
            return residual + x

        return [offer("drops_in_evaluation", drops_in_evaluation), offer("own_generator", own_generator)]

    @hookimpl
    def pretrain_cross_entropy(self, request):
        def local_sum(logits, target, group=None):
            if group is None:
                return CrossEntropy(request)(logits, target)
            column = (target - group.rank() * logits.shape[-1]).clamp(0, logits.shape[-1] - 1)
            return F.cross_entropy(logits.float().flatten(0, 1), column.flatten(), reduction="none").view(target.shape)

        counts_padding = CrossEntropy(replace(request, vocab_size=request.padded_vocab_size))
        return [offer("counts_padding", counts_padding), offer("local_sum", local_sum)]

    @hookimpl
    def pretrain_linear(self, request):
        def does_not_wait(x, weight, bias=None, group=None):
            return ForgetfulLinear.apply(x, weight, bias, group)

        def adds_and_returns(x, weight, bias=None, group=None):
            return AddingLinear.apply(x, weight, bias)

        plain = [offer("does_not_wait", does_not_wait), offer("adds_and_returns", adds_and_returns)]
        return [*plain, *wrong_quantization.kernels(request)]

    @hookimpl
    def pretrain_grouped_linear(self, request):
        return [*experts.grouped_linears(request), *wrong_quantization.kernels(request)]

    @hookimpl
    def pretrain_moe_permute(self, request):
        return experts.permutations(request)

    @hookimpl
    def pretrain_router(self, request):
        return experts.routers(request)

    @hookimpl
    def pretrain_optimizer(self, request):
        def kernels(adam):
            return OptimizerKernels(adam=adam, gradient_norm=gradient_norm(request.device_type))

        def iterating(orthogonalize):
            return OptimizerKernels(
                adam=ForeachAdam, gradient_norm=gradient_norm(request.device_type), orthogonalize=orthogonalize
            )

        return [
            *wrong_states.adams(request),
            offer("stops_early", iterating(lambda matrices, steps: orthogonalize(matrices, steps - 1))),
            offer(
                "iterates_in_16_bits",
                iterating(lambda matrices, steps: orthogonalize(matrices.bfloat16(), steps).float()),
            ),
            offer("one_norm_for_all", iterating(one_norm_for_all)),
            offer("uncorrected", kernels(UncorrectedAdam)),
            offer("step_by_parameter", kernels(StepByParameter)),
            Offer(name="halves_state", build=lambda _: kernels(ForeachAdam), fake=lambda _: kernels(HalfAdam)),
        ]


def one_norm_for_all(matrices, steps):
    norm = matrices.norm()
    return orthogonalize(matrices / norm, steps) * (matrices.norm(dim=(1, 2), keepdim=True) / norm)


class WorkspaceNorm(torch.autograd.Function):
    last = None

    @staticmethod
    def forward(ctx, x, weight, bias, request, fault):
        ctx.dtypes, (x, weight) = (x.dtype, weight.dtype), (x.float(), weight.float())
        centred = x - x.mean(-1, keepdim=True) if request.kind == "LayerNorm" else x
        rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + request.epsilon)
        ctx.kind, ctx.has_bias, ctx.fault = request.kind, bias is not None, fault
        ctx.kept = WorkspaceNorm.last = centred * rstd, rstd, weight
        return (centred * rstd * weight + (0 if bias is None else bias)).to(ctx.dtypes[0])

    @staticmethod
    def backward(ctx, grad):
        normed, rstd, weight = WorkspaceNorm.last if ctx.fault == "one workspace" else ctx.kept
        scaled, (of_x, of_weight) = grad * weight, ctx.dtypes
        centre = scaled.mean(-1, keepdim=True) if ctx.kind == "LayerNorm" else 0
        grad_x = rstd * (scaled - centre - normed * (scaled * normed).mean(-1, keepdim=True))
        grad_weight = (grad * normed).sum((0, 1)).to(of_weight)
        if ctx.fault == "in place":
            normed.mul_(0.5)
        return grad_x.to(of_x), grad_weight, grad.sum((0, 1)) if ctx.has_bias else None, None, None


class ForgetfulLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.has_bias = group, bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight
        if ctx.group is not None:
            dist.all_reduce(grad_x, group=ctx.group, async_op=True)
        rows = grad.flatten(0, 1)
        return grad_x, rows.t() @ x.flatten(0, 1), rows.sum(0) if ctx.has_bias else None, None


class AddingLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, 1)
        grad_weight = rows.t() @ x.flatten(0, 1)
        if hasattr(weight, "main_grad"):
            weight.main_grad += grad_weight
        return grad @ weight, grad_weight, rows.sum(0) if ctx.has_bias else None


class UncorrectedAdam(ForeachAdam):
    def _update(self, group, *lists):
        super()._update({**group, "step": 10**6}, *lists)


class StepByParameter(torch.optim.AdamW):
    def __init__(self, params, lr, betas, eps, weight_decay, adam_w_mode=True):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class HalfAdam(ForeachAdam):
    def _state_of(self, parameter):
        self.state[parameter] = {name: parameter.bfloat16() for name in ("exp_avg", "exp_avg_sq")}
        return self.state[parameter]

    def _update(self, group, *lists):
        pass


class SilentBackend(CpuBackend):
    """Its communication library reports completion, but sends nothing."""

    name = "silent"
    process_group = "fake"

    def point_to_point(self):
        return PointToPoint(batched=True)

    def device(self, local_rank):
        from torch.testing._internal.distributed import fake_pg  # registers "fake"

        assert fake_pg.FakeStore
        return super().device(local_rank)


class SilentCollectives:
    @hookimpl
    def pretrain_backend(self):
        return SilentBackend()

    @hookimpl
    def pretrain_collectives(self, request):
        return offer("silent", lambda group_name: None)


WRONG = WrongKernels()
SILENT = SilentCollectives()
