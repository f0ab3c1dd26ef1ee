"""Taps call a kernel as the training does."""

from types import SimpleNamespace

import torch

from pretrain.tools.align.recording.folder import ModulePlace, Visit
from pretrain.tools.align.recording.taps import Taps


def tapped(kernel, operation):
    taps = Taps(checking=False)
    taps.visits = SimpleNamespace(current=Visit(ModulePlace(1, "m"), micro_batch=0, batch_first=False, again=True))
    taps.sink = SimpleNamespace(tick=lambda: 0, add=lambda *_, **__: None)
    return taps.around(SimpleNamespace(operation=operation), kernel)


def test_a_kernel_may_call_its_parameters_what_it_likes():
    with torch.no_grad():
        assert tapped(lambda a, b, c: a * b + c, "linear")(2, 3, 4) == 10
        assert tapped(lambda q, k, v, mask=None, *, training: (q, mask, training), "attention")(
            1, 2, 3, mask=5, training=False
        ) == (1, 5, False)


def test_what_gets_a_gradient_keeps_its_place():
    x, weight = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0)
    tapped(lambda a, b: a * b, "linear")(x, weight).backward()
    assert x.grad == 3
