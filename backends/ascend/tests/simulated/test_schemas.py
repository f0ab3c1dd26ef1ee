"""The schemas read from the wheel's strings are those that the installed torch_npu registers."""

from __future__ import annotations

import pytest
import torch

from ascend_kit import schemas


def test_the_installed_release_has_the_schemas_that_are_kept():
    torch_npu = pytest.importorskip("torch_npu")
    kept = schemas.RELEASES.get(f"torch_npu-{torch_npu.__version__}")
    if kept is None:
        pytest.skip(f"no schemas of torch_npu {torch_npu.__version__} are kept")
    for name, schema in kept.items():
        registered = getattr(torch.ops.npu, name).default._schema
        assert str(registered).removeprefix("npu::") == str(schema)
