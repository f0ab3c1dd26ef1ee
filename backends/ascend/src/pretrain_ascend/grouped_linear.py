"""Linears of experts in CANN's grouped matmul, which reads the counts on the device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pretrain.plugins.offer import offer_unless
from pretrain_ascend import software
from pretrain_ascend.devices import Family
from pretrain_ascend.kernels import chip_requirements

if TYPE_CHECKING:
    from pretrain.plugins.offer import Decline, Offer
    from pretrain.plugins.requests import GroupedLinearRequest

NAME = "grouped_matmul"
MOST_EXPERTS = 1024
NARROWER_THAN = 65536
"""aclnnGroupedMatmulV4: groups, and the last axis of a matrix."""


def answers(request: GroupedLinearRequest) -> Offer | Decline:
    """Return the one kernel, or the reason that it does not fit."""
    reason = chip_requirements.unsupported_reason(request, Family.A2) or _limits(request)

    def build(_: object) -> Any:
        return import_module("pretrain_ascend.kernels.grouped_matmul").grouped_linear

    def fake(_: object) -> Any:
        return import_module("pretrain_ascend.kernels.stand_ins.grouped_matmul").grouped_linear

    return offer_unless(reason, name=NAME, build=build, fake=fake, provider=software.provider())


def _limits(request: GroupedLinearRequest) -> str:
    if request.quantization:
        return f"quantization {request.quantization}; only without: fp8 needs chip family {Family.A5}, not tried here"
    if request.deterministic:
        return "deterministic; only without: its documentation promises no order of a sum"
    if request.experts > MOST_EXPERTS:
        return f"{request.experts} experts; at most {MOST_EXPERTS}"
    columns = request.ffn_hidden_size * (2 if request.is_gated else 1)
    widest = max(request.hidden_size, columns)
    return f"{widest} columns; only fewer than {NARROWER_THAN}" if widest >= NARROWER_THAN else ""
