"""Counts how the triangle's kernels read memory, compiled for a GPU that is not here (`kit.offline_triangle 90`).

Prints, as JSON, for each kernel the loads of a thread and how many of them are of 16 bytes; nothing is launched.
"""

from __future__ import annotations

import json
import re
import sys

import torch

from kit.offline import compiling
from pretrain_cuda.kernels.triton.triangle_softmax import DropoutRate, softmax_, softmax_backward_


def loads(capability: int) -> dict[str, tuple[int, int]]:
    """Compile for strips of 512 queries and 2048 keys in bf16, with dropout."""
    found = {}

    def note(name, kernel):
        instructions = re.findall(r"ld\.global[.\w:]*", kernel.asm["ptx"])
        found[name] = len(instructions), sum(".v4" in instruction for instruction in instructions)

    strip, dropout = torch.zeros(2, 512, 2048, dtype=torch.bfloat16), DropoutRate(0.1)
    with compiling(capability, note):
        softmax_(strip, 512, 1.0, dropout, DropoutRate.seed(strip.device))
        softmax_backward_(strip, strip.clone(), 512, dropout)
    return found


if __name__ == "__main__":
    print(json.dumps(loads(int(sys.argv[1]))))
