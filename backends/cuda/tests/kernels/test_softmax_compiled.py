"""Compiled softmax kernels for a GPU that is not here: widths of loads, addresses, registers.

    python test_softmax_compiled.py 90

prints it for compute capability 9.0 as JSON; the tests read that from a process in which Triton compiles.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pretrain.plugins.requests import Mask
from pretrain.testing import examples

ROWS = {Mask.CAUSAL: None, Mask.KEY_PADDING: 1, Mask.ARBITRARY: 16}
"""Rows of a mask, if any. Without one the kernels are those for causal rows with a condition less."""
KEYS = (2048, 16384, 32768)
"""Keys of short rows, of the longest that stay in registers, and of longer ones."""
REGISTERS = 65536
"""Registers of a multiprocessor, on every architecture from 8.0 on."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    from kit.compiler import run_compiler  # this file is a program too, which finds `kit` later

    printed = run_compiler(tmp_path_factory.mktemp("triton"), __file__, 90)
    return [json.loads(line) for line in printed.splitlines()]


def test_every_kernel_was_compiled_for_every_mask(compiled):
    assert {(kernel["name"], kernel["mask"]) for kernel in compiled} == {
        (f"{way}_{kind}", mask) for way in ("forward", "backward") for kind in ("tile", "long") for mask in ROWS
    }


def test_every_load_and_store_moves_16_bytes_of_a_thread(compiled):
    """Also those of causal rows, which end anywhere: Triton must see that neighbours are masked alike."""
    narrow = {kernel["name"]: set(kernel["moves"]) - {"ld.global.v4.b32", "st.global.v4.b32"} for kernel in compiled}
    assert all(kernel["moves"] for kernel in compiled)
    assert {name: moves for name, moves in narrow.items() if moves} == {}


def test_nothing_is_spilled_and_at_least_one_program_fits(compiled):
    assert [kernel for kernel in compiled if kernel["stack"]] == []
    assert [kernel for kernel in compiled if kernel["registers"] * kernel["threads"] > REGISTERS] == []


def test_short_rows_leave_room_for_ten_programs(compiled):
    """The figures by which the tiles were chosen: FORWARD and BACKWARD of kernels.triton.softmax."""
    short = [kernel for kernel in compiled if kernel["threads"] == 128 and kernel["dtype"] == "torch.bfloat16"]
    assert short
    assert [kernel for kernel in short if 10 * kernel["registers"] * 128 > REGISTERS] == []


def test_addresses_of_rows_have_64_bits(compiled):
    """There may be more than 2^31 scores. Long rows are addressed by their start; 32 bits count what is in them."""
    assert [kernel for kernel in compiled if kernel["name"].endswith("tile") and "i32" in kernel["offsets"]] == []
    assert [kernel for kernel in compiled if "i32" in kernel["row offsets"]] == []
    assert all(kernel["row offsets"] for kernel in compiled if kernel["name"].endswith("long"))


def describe(name: str, kernel, cubin: Path) -> dict[str, object]:
    """Return the figures of a compiled kernel that the tests check."""
    import triton

    cubin.write_bytes(kernel.asm["cubin"])
    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([program, "--dump-resource-usage", cubin], check=True, capture_output=True, text=True).stdout
    return {
        "name": name,
        "moves": sorted(set(re.findall(r"\b(?:ld|st)\.global[.\w]*", kernel.asm["ptx"]))),
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "stack": int(re.search(r"STACK:(\d+)", usage)[1]) + int(re.search(r"LOCAL:(\d+)", usage)[1]),
        "threads": 32 * kernel.metadata.num_warps,
        "offsets": sorted(set(re.findall(r"tt\.addptr.*, tensor<[\dx]*x(i\d+)>", kernel.asm["ttir"]))),
        "row offsets": sorted(set(re.findall(r"tt\.addptr.*, (i\d+) loc", kernel.asm["ttir"]))),
    }


def compile_all(capability: int) -> None:
    """Call the kernels on tensors whose values mean nothing, and print what was compiled instead of launching it."""
    import triton
    from triton.runtime.jit import JITFunction

    from kit.offline import AbsentDevice
    from pretrain_cuda.kernels.triton.softmax import Softmax

    triton.runtime.driver.set_active(AbsentDevice(capability))
    cubin = Path(os.environ["TRITON_CACHE_DIR"]) / "described.cubin"
    run = JITFunction.run

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        print(json.dumps(describe(self.fn.__name__, kernel, cubin) | about))
        return kernel

    JITFunction.run = compile_only
    for dtype, mask in [*((torch.bfloat16, mask) for mask in ROWS), (torch.float32, Mask.CAUSAL)]:
        for keys in KEYS:
            about = {"mask": mask, "dtype": str(dtype)}
            tensor = torch.zeros(1, 1, ROWS[mask], keys, dtype=torch.bool) if ROWS[mask] else None
            scores = torch.zeros(1, 2, 16, keys, dtype=dtype, requires_grad=True)
            weights = Softmax(examples.softmax(dtype, mask, queries=16, keys=keys))(scores, tensor)
            weights.backward(torch.zeros_like(weights))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    compile_all(int(sys.argv[1]))
