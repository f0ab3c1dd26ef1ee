"""Functions that megatron-core calls by CUDA's names are there for an NPU too: in torch.npu or in the bridge."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.coverage import unknown_names
from bridge.test_coverage import UNREACHED_NAMES, imported, unreached
from pretrain.bridge.megatron.names import DeviceNames
from pretrain.plugins.backend import Unavailable
from pretrain_ascend.backend import AscendBackend

__all__ = ["imported"]

answer = AscendBackend().availability()
pytestmark = [
    pytest.mark.skipif(isinstance(answer, Unavailable), reason=f"no NPU: {getattr(answer, 'reason', '')}"),
    pytest.mark.usefixtures("forked_python"),
    pytest.mark.xdist_group("ranks"),  # the worker that has the process to fork from
]


@pytest.mark.full
def test_every_name_of_cuda_is_known(imported):
    names = DeviceNames(AscendBackend())
    unknown = {
        (module, what.partition(": ")[2])
        for module, file in imported.items()
        if file.endswith(".py") and not unreached(module)
        for what in unknown_names(Path(file).read_text(), file, names)
    }
    assert unknown - UNREACHED_NAMES.keys() == set()
