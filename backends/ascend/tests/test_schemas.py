"""Every call of torch_npu's operators fits the schemas of the releases that are kept here, and the check can fail."""

from __future__ import annotations

import pytest
import torch

from ascend_kit import schemas
from ascend_kit.extract import called

X = torch.zeros(1)


def test_two_releases_are_kept():
    assert sorted(schemas.RELEASES) == ["torch_npu-2.13.0", "torch_npu-2.9.0"]


@pytest.mark.parametrize("release", sorted(schemas.RELEASES))
def test_every_operator_that_is_called_is_kept(release):
    """extract.py writes them: an operator that is called for the first time needs a new extract."""
    assert sorted(schemas.RELEASES[release]) == called()


def test_arguments_that_differ_between_releases_keep_their_defaults():
    """The stand-ins hold each call against all releases; here is one that only the newer one has."""
    assert schemas.bind("torch_npu-2.13.0", "npu_rotary_mul", (X, X, X), {"rotate": X})
    with pytest.raises(
        TypeError, match=r"torch_npu-2\.9\.0: npu_rotary_mul got \[\] twice, and does not know \['rotate'\]"
    ):
        schemas.bind("torch_npu-2.9.0", "npu_rotary_mul", (X, X, X), {"rotate": X})


@pytest.mark.parametrize(
    ("name", "arguments", "options", "fault"),
    [
        ("npu_swiglu", (X, -1, X), {}, "takes 2 positional arguments, got 3"),
        ("npu_gelu", (X, "tanh"), {}, "takes 1 positional arguments, got 2"),
        ("npu_swiglu", (X,), {"input": X}, "got ['input'] twice"),
        ("npu_rms_norm", (X,), {}, "lacks gamma"),
        ("npu_rms_norm", (X, X, "small"), {}, "got epsilon='small' for float"),
        ("npu_swiglu", (X,), {"dim": True}, "got dim=True for int"),
        ("npu_swish", (X,), {}, "has no npu_swish"),
    ],
)
def test_a_call_that_does_not_fit_is_found(name, arguments, options, fault):
    with pytest.raises(TypeError) as caught:
        schemas.bind("torch_npu-2.13.0", name, arguments, options)
    assert fault in str(caught.value)
