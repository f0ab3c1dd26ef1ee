"""Example requests for tests of kernels: small, odd sizes by default."""

from __future__ import annotations

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

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes that kernels are tested in, where the device supports them."""


def softmax(
    dtype: torch.dtype = torch.float32,
    mask: Mask = Mask.CAUSAL,
    *,
    queries: int = 33,
    keys: int = 33,
    heads: int = 4,
    scale: float = 1.0,
    deterministic: bool = False,
) -> SoftmaxRequest:
    """Return a request."""
    return SoftmaxRequest(
        device_type="cpu",
        dtype=dtype,
        heads=heads,
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
    batch: int = 2,
    block: int = 16,
    dropout: float = 0.0,
    scale: float | None = None,
    divisor: float = 1.0,
    deterministic: bool = False,
) -> AttentionRequest:
    """Return a request; scores are scaled by size**-0.5 where nothing else is said."""
    return AttentionRequest(
        device_type="cpu",
        dtype=dtype,
        heads=heads,
        query_groups=groups or heads,
        head_size=size,
        seq_length=length,
        micro_batch_size=batch,
        mask=mask,
        dropout=dropout,
        scale=size**-0.5 if scale is None else scale,
        score_divisor=divisor,
        block_size=block,
        deterministic=deterministic,
    )


def norm(
    dtype: torch.dtype = torch.float32,
    kind: str = "LayerNorm",
    *,
    hidden: int = 48,
    epsilon: float = 1e-5,
    weight_dtype: torch.dtype | None = None,
    deterministic: bool = False,
) -> NormRequest:
    """Return a request; weights in the dtype of the input where nothing else is said."""
    return NormRequest(
        device_type="cpu",
        dtype=dtype,
        kind=kind,
        hidden_size=hidden,
        epsilon=epsilon,
        weight_dtype=weight_dtype or dtype,
        deterministic=deterministic,
    )


def rotary(
    dtype: torch.dtype = torch.float32, *, rotary_size: int = 16, size: int = 16, length: int = 33, heads: int = 4
) -> RotaryRequest:
    """Return a request."""
    return RotaryRequest(
        device_type="cpu", dtype=dtype, heads=heads, head_size=size, rotary_size=rotary_size, seq_length=length
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
