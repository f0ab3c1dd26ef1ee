"""Section `engine`: what steps the optimizer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pretrain.recipe.section import Section, local_path
from pretrain.recipe.sections.engine.zero import ZeroSection
from pretrain.recipe.shown import shown


def _file_or_object(given: object) -> object:
    if given is None or (isinstance(given, str | dict) and given):
        return local_path(given)
    msg = f"{shown(given)} is neither the path of a DeepSpeed JSON file nor an object with its keys."
    raise ValueError(msg)


class EngineSection(Section):
    """Engine that steps the optimizer."""

    name: Literal["megatron", "deepspeed"] = Field(
        default="megatron",
        description="megatron: megatron-core's data parallelism and optimizer; deepspeed: DeepSpeed's, with ZeRO and "
        "offload.",
    )
    zero: ZeroSection = ZeroSection()
    deepspeed_config: Annotated[str | dict[str, Any] | None, BeforeValidator(_file_or_object)] = Field(
        default=None,
        description="A DeepSpeed JSON file, relative to the working directory, or its content as a mapping; its "
        "keys become keys of the recipe.",
    )
