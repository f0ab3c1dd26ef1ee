"""Example requests for tests of kernels: small, odd sizes by default; other fields of a request by their names."""

from __future__ import annotations

from typing import Any

import torch

from pretrain.plugins import requests
from pretrain.plugins.requests import Mask

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes that kernels are tested in, where the device supports them."""

FP32 = torch.float32


def softmax(
    dtype: torch.dtype = FP32,
    mask: Mask = Mask.CAUSAL,
    *,
    queries: int = 33,
    keys: int = 33,
    heads: int = 4,
    **fields: Any,
) -> requests.SoftmaxRequest:
    """Return a request."""
    sizes: dict[str, Any] = {"queries": queries, "keys": keys, "heads": heads}
    return requests.SoftmaxRequest(device_type="cpu", dtype=dtype, mask=mask, **sizes, **fields)


def attention(
    dtype: torch.dtype = FP32,
    mask: Mask = Mask.CAUSAL,
    *,
    length: int = 33,
    heads: int = 4,
    groups: int | None = None,
    size: int = 16,
    batch: int = 2,
    block: int = 16,
    scale: float | None = None,
    divisor: float = 1.0,
    **fields: Any,
) -> requests.AttentionRequest:
    """Return a request; scores are scaled by size**-0.5 where nothing else is said."""
    return requests.AttentionRequest(
        device_type="cpu",
        dtype=dtype,
        heads=heads,
        query_groups=groups or heads,
        head_size=size,
        seq_length=length,
        micro_batch_size=batch,
        mask=mask,
        scale=size**-0.5 if scale is None else scale,
        score_divisor=divisor,
        block_size=block,
        **fields,
    )


def norm(
    dtype: torch.dtype = FP32,
    kind: str = "LayerNorm",
    *,
    hidden: int = 48,
    epsilon: float = 1e-5,
    weight_dtype: torch.dtype | None = None,
    **fields: Any,
) -> requests.NormRequest:
    """Return a request; weights in the dtype of the input where nothing else is said."""
    sizes: dict[str, Any] = {"hidden_size": hidden, "epsilon": epsilon, "weight_dtype": weight_dtype or dtype}
    return requests.NormRequest(device_type="cpu", dtype=dtype, kind=kind, **sizes, **fields)


def rotary(
    dtype: torch.dtype = FP32, *, rotary_size: int = 16, size: int = 16, length: int = 33, heads: int = 4, **fields: Any
) -> requests.RotaryRequest:
    """Return a request."""
    sizes: dict[str, Any] = {"heads": heads, "head_size": size, "rotary_size": rotary_size, "seq_length": length}
    return requests.RotaryRequest(device_type="cpu", dtype=dtype, **sizes, **fields)


def activation(
    dtype: torch.dtype = FP32, kind: str = "gelu", *, features: int = 48, **fields: Any
) -> requests.ActivationRequest:
    """Return a request."""
    return requests.ActivationRequest(device_type="cpu", dtype=dtype, kind=kind, features=features, **fields)


def bias_dropout_add(dtype: torch.dtype = FP32, *, hidden: int = 48, **fields: Any) -> requests.BiasDropoutAddRequest:
    """Return a request."""
    return requests.BiasDropoutAddRequest(device_type="cpu", dtype=dtype, hidden_size=hidden, **fields)


def cross_entropy(
    dtype: torch.dtype = FP32,
    *,
    vocab_size: int = 50,
    padded: int = 64,
    length: int = 7,
    micro_batch: int = 2,
    **fields: Any,
) -> requests.CrossEntropyRequest:
    """Return a request."""
    sizes: dict[str, Any] = {"padded_vocab_size": padded, "seq_length": length, "micro_batch_size": micro_batch}
    return requests.CrossEntropyRequest(device_type="cpu", dtype=dtype, vocab_size=vocab_size, **sizes, **fields)


def linear(dtype: torch.dtype = FP32, **fields: Any) -> requests.LinearRequest:
    """Return a request."""
    return requests.LinearRequest(device_type="cpu", dtype=dtype, **fields)


def grouped_linear(
    dtype: torch.dtype = FP32,
    *,
    experts: int = 5,
    hidden: int = 48,
    ffn: int = 32,
    is_gated: bool = False,
    rows: int = 35,
    **fields: Any,
) -> requests.GroupedLinearRequest:
    """Return a request."""
    sizes: dict[str, Any] = {"experts": experts, "hidden_size": hidden, "ffn_hidden_size": ffn, "rows": rows}
    return requests.GroupedLinearRequest(device_type="cpu", dtype=dtype, is_gated=is_gated, **sizes, **fields)


def moe_permute(
    dtype: torch.dtype = FP32, *, experts: int = 8, topk: int = 3, hidden: int = 48, **fields: Any
) -> requests.MoePermuteRequest:
    """Return a request."""
    sizes: dict[str, Any] = {"experts": experts, "topk": topk, "hidden_size": hidden}
    return requests.MoePermuteRequest(device_type="cpu", dtype=dtype, **sizes, **fields)


def router(
    score_function: str = "softmax", *, experts: int = 8, topk: int = 3, **fields: Any
) -> requests.RouterRequest:
    """Return a request; logits in fp32."""
    sizes: dict[str, Any] = {"experts": experts, "topk": topk, "score_function": score_function}
    return requests.RouterRequest(device_type="cpu", dtype=FP32, **sizes, **fields)


def optimizer(name: str = "adamw", **fields: Any) -> requests.OptimizerRequest:
    """Return a request; main parameters in fp32."""
    return requests.OptimizerRequest(device_type="cpu", dtype=FP32, name=name, **fields)


def collectives(process_group: str = "gloo") -> requests.CollectivesRequest:
    """Return a request."""
    return requests.CollectivesRequest(device_type="cpu", dtype=FP32, process_group=process_group, timeout_minutes=1)
