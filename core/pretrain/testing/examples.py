"""A few requests for each operation, from which a plugin's kernels become known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.requests import (
    ActivationRequest,
    AttentionRequest,
    BiasDropoutAddRequest,
    CollectivesRequest,
    CrossEntropyRequest,
    LinearRequest,
    Mask,
    NormRequest,
    OptimizerRequest,
    RotaryRequest,
    SoftmaxRequest,
)

if TYPE_CHECKING:
    from pretrain.plugins.requests import Request

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""In which kernels are tested, where the device supports them."""


def softmax(
    dtype: torch.dtype = torch.float32,
    mask: Mask = Mask.CAUSAL,
    *,
    queries: int = 33,
    keys: int = 33,
    scale: float = 1.0,
    deterministic: bool = False,
) -> SoftmaxRequest:
    """Return a request; 4 heads."""
    return SoftmaxRequest(
        device_type="cpu",
        dtype=dtype,
        heads=4,
        queries=queries,
        keys=keys,
        mask=mask,
        scale=scale,
        deterministic=deterministic,
    )


def attention(
    dtype: torch.dtype = torch.float32,
    mask: Mask = Mask.CAUSAL,
    *,
    length: int = 33,
    heads: int = 4,
    groups: int | None = None,
    size: int = 16,
    dropout: float = 0.0,
    divisor: float = 1.0,
    deterministic: bool = False,
) -> AttentionRequest:
    """Return a request; micro batch of 2, blocks of 16 rows."""
    return AttentionRequest(
        device_type="cpu",
        dtype=dtype,
        heads=heads,
        query_groups=groups or heads,
        head_size=size,
        seq_length=length,
        micro_batch_size=2,
        mask=mask,
        dropout=dropout,
        scale=size**-0.5,
        score_divisor=divisor,
        block_size=16,
        deterministic=deterministic,
    )


def norm(
    dtype: torch.dtype = torch.float32,
    kind: str = "LayerNorm",
    *,
    hidden: int = 48,
    weight_dtype: torch.dtype | None = None,
    deterministic: bool = False,
) -> NormRequest:
    """Return a request; epsilon 1e-5, weights in the dtype of the input."""
    return NormRequest(
        device_type="cpu",
        dtype=dtype,
        kind=kind,
        hidden_size=hidden,
        epsilon=1e-5,
        weight_dtype=weight_dtype or dtype,
        deterministic=deterministic,
    )


def rotary(dtype: torch.dtype = torch.float32, *, rotary_size: int = 16, length: int = 33) -> RotaryRequest:
    """Return a request; 4 heads of 16."""
    return RotaryRequest(
        device_type="cpu", dtype=dtype, heads=4, head_size=16, rotary_size=rotary_size, seq_length=length
    )


def activation(
    dtype: torch.dtype = torch.float32, kind: str = "gelu", *, features: int = 48, has_bias: bool = True
) -> ActivationRequest:
    """Return a request."""
    return ActivationRequest(device_type="cpu", dtype=dtype, kind=kind, features=features, has_bias=has_bias)


def bias_dropout_add(
    dtype: torch.dtype = torch.float32, *, hidden: int = 48, dropout: float = 0.0, has_bias: bool = True
) -> BiasDropoutAddRequest:
    """Return a request."""
    return BiasDropoutAddRequest(device_type="cpu", dtype=dtype, hidden_size=hidden, dropout=dropout, has_bias=has_bias)


def cross_entropy(
    dtype: torch.dtype = torch.float32,
    *,
    vocab_size: int = 50,
    padded: int = 64,
    length: int = 7,
    micro_batch: int = 2,
    tensor_parallel_size: int = 1,
) -> CrossEntropyRequest:
    """Return a request."""
    return CrossEntropyRequest(
        device_type="cpu",
        dtype=dtype,
        vocab_size=vocab_size,
        padded_vocab_size=padded,
        seq_length=length,
        micro_batch_size=micro_batch,
        tensor_parallel_size=tensor_parallel_size,
    )


def linear(
    dtype: torch.dtype = torch.float32,
    *,
    tensor_parallel_size: int = 1,
    sequence_parallel: bool = False,
    main_grad_dtype: torch.dtype | None = None,
) -> LinearRequest:
    """Return a request."""
    return LinearRequest(
        device_type="cpu",
        dtype=dtype,
        tensor_parallel_size=tensor_parallel_size,
        sequence_parallel=sequence_parallel,
        main_grad_dtype=main_grad_dtype,
    )


def optimizer(name: str = "adamw") -> OptimizerRequest:
    """Return a request; main parameters in fp32."""
    return OptimizerRequest(device_type="cpu", dtype=torch.float32, name=name)


def collectives(process_group: str = "gloo") -> CollectivesRequest:
    """Return a request."""
    return CollectivesRequest(device_type="cpu", dtype=torch.float32, process_group=process_group, timeout_minutes=1)


EXAMPLES: dict[str, list[Request]] = {
    "softmax": [softmax(dtype, mask) for dtype in DTYPES for mask in Mask],
    "attention": [attention(dtype, mask, dropout=p) for dtype in DTYPES for mask in Mask for p in (0.0, 0.1)],
    "norm": [norm(dtype, kind) for dtype in DTYPES for kind in ("LayerNorm", "RMSNorm")],
    "rotary": [rotary(dtype) for dtype in DTYPES],
    "activation": [activation(dtype, kind) for dtype in DTYPES for kind in ("gelu", "gelu_tanh", "swiglu")],
    "bias_dropout_add": [bias_dropout_add(dtype, dropout=p) for dtype in DTYPES for p in (0.0, 0.1)],
    "cross_entropy": [cross_entropy(dtype, tensor_parallel_size=t) for dtype in DTYPES for t in (1, 2)],
    "linear": [linear(dtype, tensor_parallel_size=t) for dtype in DTYPES for t in (1, 2)],
    "optimizer": [optimizer("adam"), optimizer("adamw")],
    "collectives": [collectives()],
}
"""Operation -> requests."""
