"""Offload to files in a plan: counted as host memory, so that no folder is claimed and no library is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.sections.engine import OffloadOptimizerSection, OffloadParamSection

if TYPE_CHECKING:
    from pretrain.recipe import Recipe


def without_files(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """Return the recipe with `device: cpu` in place of `device: nvme`, and a line for the user about each.

    On the device nothing changes: weights and gradients come and go in the same pieces. What the screen then shows as
    host memory is in the files, but for the buffers (`buffer_count`).
    """
    zero = recipe.engine.zero
    changed: dict[str, OffloadOptimizerSection | OffloadParamSection] = {}
    if zero.offload_optimizer.device == "nvme":
        given = zero.offload_optimizer
        changed["offload_optimizer"] = OffloadOptimizerSection(
            device="cpu", pin_memory=given.pin_memory, cpu_adam=given.cpu_adam
        )
    if zero.offload_param.device == "nvme":
        changed["offload_param"] = OffloadParamSection(device="cpu", pin_memory=zero.offload_param.pin_memory)
    if not changed:
        return recipe, []
    engine = recipe.engine.model_copy(update={"zero": zero.model_copy(update=changed)})
    notices = [
        f"engine.zero.{name}.device: nvme is planned as cpu; what is shown as host memory is in the files, except "
        "for buffers"
        for name in changed
    ]
    return recipe.model_copy(update={"engine": engine}), notices
