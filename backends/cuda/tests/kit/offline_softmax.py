"""Describes softmax kernels compiled for a GPU that is not here: widths of loads, addresses, registers.

    python -m kit.offline_softmax 90

prints it for compute capability 9.0 as JSON; nothing is launched.
"""

from __future__ import annotations

import json
import re
import sys

import torch

from kit.offline import compiling, resources
from pretrain.conformance import examples
from pretrain.plugins.requests import Mask
from pretrain_cuda.kernels.triton.softmax import Softmax

ROWS = {Mask.CAUSAL: None, Mask.KEY_PADDING: 1, Mask.ARBITRARY: 16}
"""Rows of a mask, if any. Without one the kernels are those for causal rows with a condition less."""
KEYS = (2048, 16384, 32768)
"""Keys of short rows, of the longest that stay in registers, and of longer ones."""


def describe(capability: int) -> list[dict[str, object]]:
    """Return the figures of every kernel, called on tensors whose values mean nothing."""
    described = []
    for dtype, mask in [*((torch.bfloat16, mask) for mask in ROWS), (torch.float32, Mask.CAUSAL)]:
        about = {"mask": mask, "dtype": str(dtype)}

        def note(name, kernel, about=about):
            described.append({"name": name} | about | _figures(kernel))

        for keys in KEYS:
            tensor = torch.zeros(1, 1, ROWS[mask], keys, dtype=torch.bool) if ROWS[mask] else None
            scores = torch.zeros(1, 2, 16, keys, dtype=dtype, requires_grad=True)
            with compiling(capability, note):
                weights = Softmax(examples.softmax(dtype, mask, queries=16, keys=keys))(scores, tensor)
                weights.backward(torch.zeros_like(weights))
    return described


def _figures(kernel) -> dict[str, object]:
    return {
        "moves": sorted(set(re.findall(r"\b(?:ld|st)\.global[.\w]*", kernel.asm["ptx"]))),
        "offsets": sorted(set(re.findall(r"tt\.addptr.*, tensor<[\dx]*x(i\d+)>", kernel.asm["ttir"]))),
        "row offsets": sorted(set(re.findall(r"tt\.addptr.*, (i\d+) loc", kernel.asm["ttir"]))),
        **resources(kernel),
    }


if __name__ == "__main__":
    print(json.dumps(describe(int(sys.argv[1]))))
