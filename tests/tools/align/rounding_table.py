"""The table of rounding errors in docs/align.md: `PYTHONPATH=tests .venv/bin/python -m tools.align.rounding_table`.

It takes a few minutes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path


def main() -> None:
    """Print the table."""
    import torch

    from pretrain.bridge import megatron
    from pretrain.cpu.backend import CpuBackend

    megatron.install(CpuBackend())
    from tools.align.recorded import record
    from tools.align.rounding import DTYPES, MODELS, record_in_float64, rounding_of

    torch.set_num_threads(1)
    print("| model | dtype | layers | forward, first and last layer | backward | worst token | part of the bound |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for model, of_model in MODELS.items():
            for layers in (4, 12, 48):
                overrides = (*of_model, f"model.num_layers={layers}")
                exact = record_in_float64(Path(folder) / f"{model}{layers}", *overrides)
                for dtype, of_dtype in DTYPES.items():
                    found = rounding_of(exact, record(Path(folder) / f"{model}{layers}{dtype}", *overrides, *of_dtype))
                    forward = f"{found.errors[False, 1]:.1f}, {found.errors[False, layers]:.1f}"
                    backward = f"{found.errors[True, layers]:.1f}, {found.errors[True, 1]:.1f}"
                    cells = (model, dtype, layers, forward, backward, f"{found.row:.0f}", f"{found.share:.2f}")
                    print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
