"""Section `checkpoint`: what is saved, and what a run starts from."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from pretrain.recipe.section import Bool, Int, LocalPath, Section, local_path
from pretrain.recipe.shown import shown


def _switch_or_folder(given: object) -> object:
    if isinstance(given, bool) or (isinstance(given, str) and given):
        return local_path(given)
    msg = f"{shown(given)} is not true, false or a folder."
    raise ValueError(msg)


class CheckpointSection(Section):
    """Checkpoints to save and to start from. Paths are relative to the working directory."""

    save: Annotated[bool | str, BeforeValidator(_switch_or_folder)] = Field(
        default=True, description="true (into checkpoints/ of the run directory), false, or another folder."
    )
    load: LocalPath | None = Field(
        default=None,
        description="Folder of checkpoints to start from; its latest is taken. Another program's gives its weights "
        "(see checkpoints.md). By default a fresh start.",
    )
    save_interval: Int = Field(default=0, ge=0, description="Iterations between two checkpoints; 0: only at the end.")
    keep: Int | None = Field(
        default=None, gt=0, description="Number of latest checkpoints that are kept; by default all."
    )
    async_save: Bool = Field(
        default=False,
        description="Whether checkpoints are written while training goes on; a step waits only until the state is "
        "copied to host memory, which must have room for it. The last one is waited for.",
    )
    finetune: Bool = Field(
        default=False, description="Whether only the weights of `load` are taken and the run starts at iteration 0."
    )
