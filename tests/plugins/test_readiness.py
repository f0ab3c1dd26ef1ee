"""The device of a loaded backend: there or not, and what it can do."""

from __future__ import annotations

import pytest
import torch

from pretrain.errors import BackendError
from pretrain.plugins import manager
from pretrain.plugins.backend import Available, Unavailable
from pretrain.plugins.readiness import availability, require_device, require_dtype

pytestmark = pytest.mark.usefixtures("reference")


def test_a_device_that_is_there(site):
    site.backend("fake")
    assert require_device(manager.load("fake")) == Available("two of them")


def test_a_device_that_is_not_there_gives_reason_and_remedy(site):
    site.backend("fake", availability="Unavailable('no driver', 'install the driver')")
    with pytest.raises(
        BackendError, match=r"\(pretrain-fake 1.0\) has no usable device: no driver\ninstall the driver"
    ):
        require_device(manager.load("fake"))


@pytest.mark.parametrize(("expression", "reason"), [("1 / 0", "ZeroDivisionError"), ("True", "returned bool")])
def test_a_backend_that_breaks_the_contract_is_unavailable_and_named(site, expression, reason):
    site.backend("fake", availability=expression)
    answer = availability(manager.load("fake"))
    assert isinstance(answer, Unavailable)
    assert reason in answer.reason
    assert "pretrain-fake 1.0" in answer.remedy


def test_a_dtype_that_the_device_lacks_names_those_it_has(site):
    site.backend("fake")
    plugins = manager.load("fake")
    require_dtype(plugins, torch.bfloat16)
    type(plugins.backend).supports = lambda self, dtype: dtype is not torch.bfloat16
    require_dtype(plugins, torch.float16)
    with pytest.raises(BackendError, match=r"does not support bfloat16.*\nSet precision.dtype to one of: fp32, fp16"):
        require_dtype(plugins, torch.bfloat16)
