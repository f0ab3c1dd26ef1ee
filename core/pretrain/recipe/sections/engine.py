"""Section `engine`: what steps the optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from pretrain.recipe.section import Section


def _not_deepspeed(given: object) -> object:
    if given == "deepspeed":
        msg = (
            "'deepspeed' is not in this version. Use megatron; "
            "parallel.use_distributed_optimizer: true splits the optimizer as ZeRO-1 does."
        )
        raise ValueError(msg)
    return given


class EngineSection(Section):
    """What steps the optimizer."""

    name: Annotated[Literal["megatron"], BeforeValidator(_not_deepspeed)] = Field(
        default="megatron", description="megatron: megatron-core's data parallelism and optimizer."
    )
