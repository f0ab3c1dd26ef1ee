"""Section `engine`: what steps the optimizer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pretrain.recipe.section import Section, Str
from pretrain.recipe.sections.zero import ZeroSection


class EngineSection(Section):
    """What steps the optimizer."""

    name: Literal["megatron", "deepspeed"] = Field(
        default="megatron",
        description="megatron: megatron-core's data parallelism and optimizer; deepspeed: DeepSpeed's, with ZeRO and "
        "offload.",
    )
    zero: ZeroSection = ZeroSection()
    deepspeed_config: Str | None = Field(
        default=None,
        min_length=1,
        description="A DeepSpeed JSON file, relative to the working directory; what it says is taken over as keys of "
        "the recipe.",
    )
