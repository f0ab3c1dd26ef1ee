"""Memory by kind of module."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING

from pretrain.tools.plan.stage_plan import ModuleRow

if TYPE_CHECKING:
    from pretrain.tools.plan.trace.rank_trace import RankTrace

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_CHUNK = re.compile(r"^chunk \d+: ")


def module_rows(trace: RankTrace, weight_bytes: int) -> list[ModuleRow]:
    """Return a row for every kind of module that has parameters or keeps activations.

    Args:
        trace: of a rank.
        weight_bytes: of one parameter.
    """
    parameters: dict[str, int] = defaultdict(int)
    modules: dict[str, set[str]] = defaultdict(set)
    for name, count in trace.parameters.items():
        owner = name.rpartition(".")[0]
        parameters[_kind(owner)] += count
        for module in accumulate(owner.split("."), "{}.{}".format):
            modules[_kind(module)].add(module)
    counted = set(modules)
    activations: dict[str, int] = defaultdict(int)
    for module, size in _kept(trace).items():
        activations[_kind(module)] += size
        if _kind(module) not in counted:
            modules[_kind(module)].add(module)
    return [
        ModuleRow(
            name=kind,
            count=len(modules[kind]),
            parameters=parameters[kind],
            weights=parameters[kind] * weight_bytes,
            activations=activations[kind],
        )
        for kind in dict.fromkeys([*parameters, *activations])
    ]


def _kind(module: str) -> str:
    return _NUMBER.sub("*", _CHUNK.sub("", module)) or "model"


def _kept(trace: RankTrace) -> dict[str, int]:
    """Return what the first forward pass of the last step allocates and keeps, by module."""
    found: dict[str, int] = defaultdict(int)
    begin, updated, _ = trace.steps[-1]
    first = [block for block in trace.blocks if block.place.step == len(trace.steps) and block.place.micro_batch == 1]
    forward = [block for block in first if begin <= block.born < updated and not block.place.is_backward]
    end = max((block.born for block in forward), default=begin)
    for block in forward:
        if block.place.module and not block.on_host and (block.died is None or block.died > end):
            found[block.place.module] += block.size
    return dict(found)
