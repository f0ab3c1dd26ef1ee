"""Imported when Python starts in the Ascend virtual environment: `import torch_npu` then brings the simulated NPU.

The environment's .pth file imports this, so that every process has it: pytest, pretrain, torchrun.
Nothing is loaded before torch_npu is imported.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from typing import TYPE_CHECKING

from ascend_simulator.places import TOOLKIT

if TYPE_CHECKING:
    import types
    from collections.abc import Sequence


class Finder:
    """Finder of torch_npu, which loads the simulator before and after its import."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return torch_npu's own specification, whose loader first loads the simulated libraries."""
        if name != "torch_npu":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        usual = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            from ascend_simulator import loading

            loading.before_torch_npu()
            usual(module)
            loading.after_torch_npu()

        spec.loader.exec_module = exec_module
        return spec


def start() -> None:
    """Set what an installed CANN would have set, and wait for torch_npu's import."""
    os.environ.setdefault("ASCEND_HOME_PATH", str(TOOLKIT))
    os.environ.setdefault("ASCEND_OPP_PATH", str(TOOLKIT / "opp"))
    if "PYTORCH_ALLOC_CONF" not in os.environ:  # which torch_npu refuses beside the other
        os.environ.setdefault("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:False")  # virtual memory is not simulated
    # Queued, HCCL's calls would be handed over by a thread of torch_npu's while kernels run on the caller's.
    os.environ["TASK_QUEUE_ENABLE"] = "0"
    sys.meta_path.insert(0, Finder)


start()
