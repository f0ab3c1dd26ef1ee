"""Time of the peak in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.tools.plan.trace.place import Place


def peak_text(place: Place | None) -> str:
    """Return where in the step memory is highest: "a backward pass, after 8 forward passes had begun"."""
    if place is None or place.step == 0:
        return "between the steps"
    if place.phase == "optimizer":
        return "update of the weights"
    if place.phase == "gradients":
        return "beginning of the step"
    inside = ", ".join(filter(None, (place.module, place.operation)))
    number = place.micro_batch
    if place.is_backward:
        passes = f"{number} forward pass{'' if number == 1 else 'es'}"
        begun = f"a backward pass, after {passes} had begun"
    else:
        begun = f"forward pass {number}"
    return f"{begun}: {inside}" if inside else begun
