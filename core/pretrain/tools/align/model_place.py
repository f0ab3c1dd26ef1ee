"""Place of a call in the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Place of a module in the model, whatever the layout.

    Attributes:
        position: 0 before the layers, the layer's number from 1 over all stages, or the number of layers + 1 after
            them.
        module: its path within that: "input_layernorm", "mlp.linear_fc1", "output_layer"; "" for the layer itself.
    """

    position: int
    module: str

    def title(self, layers: int) -> str:
        """Return the place in words, for a model of so many layers."""
        if 0 < self.position <= layers:
            return f"layer {self.position} of {layers}"
        return "before the layers" if self.position == 0 else "after the layers"
