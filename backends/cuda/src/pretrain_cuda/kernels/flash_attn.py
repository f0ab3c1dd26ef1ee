"""flash-attn, in its three generations: none of them stores the weights.

Limits are those that the libraries check, at commit 0251105a of github.com/Dao-AILab/flash-attention (2.8.4):
csrc/flash_attn/flash_api.cpp, hopper/flash_api.cpp, flash_attn/cute/interface.py. Scores stay in fp32 in all, so that
`score_divisor` is not needed and `softmax_in_fp32` is fulfilled; causal masks end at the last key, so that there may be
fewer queries than keys. A window is two numbers of keys: those before the query's own, and those after it.

Documents are their sequences of different lengths. One without queries computes nothing forward, and gives its keys
gradients of zero: see flash_bwd_kernel.h of 2 (since 2.3.4), hopper/mainloop_bwd_sm90_tma_gmma_ws.hpp of 3 (its tests
have none), and the zero_lengths_q of tests/cute/test_flash_attn.py for 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins import installed
from pretrain.plugins.offer import Absent, offer_unless
from pretrain.plugins.requests import Mask
from pretrain.reference.attention import by_sample, from_samples, require_documents
from pretrain.reference.softmax import check_mask
from pretrain_cuda.devices import architecture_of, multiprocessors_of
from pretrain_cuda.kernels.flash_limits import (
    ANY_LENGTH,
    before_ampere,
    has_little_shared_memory,
    not_a_multiple_of,
    over_head_size,
    unsupported_reason,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import AttentionRequest
    from pretrain.plugins.signatures import Documents
    from pretrain_cuda.devices import Architecture
    from pretrain_cuda.kernels.flash_limits import Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """One generation.

    Attributes:
        name: of the kernel.
        module: where its `flash_attn_func` and `flash_attn_varlen_func` are.
        extension: a module that it needs besides; the package may be installed without it.
        distribution: its name for pip.
        remedy: how to get it.
        limits: the reason that it declines a request on an architecture, or "".
        stand_in: makes what takes the place of both on fake tensors.
    """

    name: str
    module: str
    extension: str
    distribution: str
    remedy: str
    limits: Limits
    stand_in: Callable[[AttentionRequest], Callable[..., Any]]

    def answer(self, request: AttentionRequest) -> Offer | Decline:
        """Return the kernel, or the reason that it does not fit; the installation is checked last."""
        reason = unsupported_reason(request, self.limits, ANY_LENGTH) or self._missing()
        provider = installed.provider(self.distribution)
        return offer_unless(
            reason,
            name=self.name,
            kind="flash",
            build=lambda _: around(request, import_module(self.module)),
            provider=provider,
            fake=lambda _: _kind(request)(request, self.stand_in(request)),
        )

    def _missing(self) -> str:
        missing = [module for module in (self.module, self.extension) if not installed.has(module)]
        return Absent(f"{missing[0]} is not installed: {self.remedy}" if missing else "")


def around(request: AttentionRequest, module: Any) -> FlashAttention:
    """Return the kernel that calls the function of a library's module that a request needs."""
    is_varlen = request.mask is Mask.DOCUMENTS
    return _kind(request)(request, module.flash_attn_varlen_func if is_varlen else module.flash_attn_func)


def _kind(request: AttentionRequest) -> type[FlashAttention]:
    return FlashAttentionOfDocuments if request.mask is Mask.DOCUMENTS else FlashAttention


class FlashAttention:
    """An `AttentionFn` around a `flash_attn_func`."""

    def __init__(self, request: AttentionRequest, function: Callable[..., Any]) -> None:
        self.function, self.mask, self.dropout = function, request.mask, request.dropout
        self.settings: dict[str, Any] = {
            "softmax_scale": request.scale,
            "causal": request.mask in (Mask.CAUSAL, Mask.DOCUMENTS),
            "deterministic": request.deterministic,  # matters in the backward pass only
        }
        if request.window is not None:
            self.settings["window_size"] = request.window - 1, 0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, *, training: bool = True) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [keys, b, g, d]."""
        check_mask(self.mask, mask)
        batch_first = (_dense(x).transpose(0, 1) for x in (query, key, value))
        # FA2 lays the result out as the query is; then nothing is copied here.
        return self._call(*batch_first, training=training).transpose(0, 1).flatten(2).contiguous()

    def _call(self, *tensors: Tensor, training: bool, **settings: Any) -> Tensor:
        drops = {"dropout_p": self.dropout} if training and self.dropout else {}  # FA3 and FA4 know no such argument
        result = self.function(*tensors, **settings, **self.settings, **drops)
        # FA4, and FA3 of before 29 August 2025, return the rows' log-sum-exp too.
        context: Tensor = result[0] if isinstance(result, tuple) else result
        return context


class FlashAttentionOfDocuments(FlashAttention):
    """An `AttentionFn` around a `flash_attn_varlen_func`, for documents: those of all samples in one call."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Documents | None = None, *, training: bool = True
    ) -> Tensor:
        """Return the context [s, b, n * d] for query [s, b, n, d], key and value [keys, b, g, d]."""
        documents = require_documents(mask)
        joined = (by_sample(_dense(x)) for x in (query, key, value))
        context = self._call(
            *joined,
            training=training,
            cu_seqlens_q=documents.query_ends,
            cu_seqlens_k=documents.key_ends,
            # At least 2: for 1 FA2 decodes, which assumes that every document has its one query.
            max_seqlen_q=max(2, *documents.queries),
            max_seqlen_k=max(documents.keys),
        )
        return from_samples(context, query.shape[1])


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()  # the kernels read rows of heads


def _limits_2(request: AttentionRequest, architecture: Architecture) -> str:
    if request.head_size > 192 and request.dropout and has_little_shared_memory(architecture):
        # flash_bwd_launch_template.h, run_mha_bwd_hdim256, launches nothing there, without an error.
        return (
            f"head size {request.head_size} with dropout {request.dropout} on compute capability {architecture}, for "
            "which it has no backward kernel; at most 192, or no dropout"
        )
    return before_ampere(architecture) or over_head_size(request, 256)


def _limits_3(request: AttentionRequest, architecture: Architecture) -> str:
    if architecture.major != 9:
        return Absent(f"compute capability {architecture}; only 9.0")
    if request.deterministic and request.head_size > 192:
        return f"head size {request.head_size} and deterministic; its deterministic backward pass takes at most 192"
    return _no_dropout(request) or over_head_size(request, 256) or not_a_multiple_of(8, request)


def _limits_4(request: AttentionRequest, architecture: Architecture) -> str:
    if architecture.major not in (9, 10):
        return Absent(f"compute capability {architecture}; only 9.0 and 10.x")
    if architecture.major == 10 and 128 < request.head_size < 256:
        return f"head size {request.head_size} on compute capability {architecture}; only up to 128, and 256"
    if request.mask is Mask.DOCUMENTS and (reason := _untested_4(request)):
        return reason
    if request.window is not None:  # torch's own use of it (torch/nn/attention/_fa4.py) has none in training either
        return f"window {request.window}; its backward pass is not known to have one"
    return _no_dropout(request) or over_head_size(request, 256) or not_a_multiple_of(8, request)


def _untested_4(request: AttentionRequest) -> str:
    """Return the reason of what its own tests have no backward pass of, where documents' lengths differ."""
    if request.keys:
        return f"{request.keys} keys for {request.seq_length} queries with documents; its tests have only as many"
    if request.head_size > 128:
        return f"head size {request.head_size} with documents; its tests have at most 128"
    return ""


def _no_dropout(request: AttentionRequest) -> str:
    return f"dropout {request.dropout}; it has none" if request.dropout else ""


def _stand_in_2(request: AttentionRequest) -> Callable[..., Any]:
    return _stand_ins().flash_2(multiprocessors_of(request.device_name))  # type: ignore[no-any-return]


def _stand_in_3(_: AttentionRequest) -> Callable[..., Any]:
    return _stand_ins().flash_3()  # type: ignore[no-any-return]


def _stand_in_4(request: AttentionRequest) -> Callable[..., Any]:
    return _stand_ins().flash_4(architecture_of(request.device_name))  # type: ignore[no-any-return]


def _stand_ins() -> Any:
    return import_module("pretrain_cuda.kernels.stand_ins.flash_generations")


FLASH_2 = Library(
    name="flash_attn_2",
    module="flash_attn.flash_attn_interface",
    extension="flash_attn_2_cuda",
    distribution="flash-attn",
    remedy="pip install flash-attn --no-build-isolation",
    limits=_limits_2,  # its Python code pads head sizes to multiples of 8
    stand_in=_stand_in_2,
)
FLASH_3 = Library(
    name="flash_attn_3",
    module="flash_attn_interface",
    extension="flash_attn_3._C",
    distribution="flash-attn-3",
    remedy="python setup.py install in the folder hopper of github.com/Dao-AILab/flash-attention",
    limits=_limits_3,
    stand_in=_stand_in_3,
)
FLASH_4 = Library(
    name="flash_attn_4",
    module="flash_attn.cute.interface",
    extension="cutlass",
    distribution="flash-attn-4",
    remedy="pip install flash-attn-4",
    limits=_limits_4,
    stand_in=_stand_in_4,
)
