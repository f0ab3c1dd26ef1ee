"""Backends that begin to decline what they took, and one without a device."""

from __future__ import annotations

from pretrain.cpu.backend import CpuBackend
from pretrain.plugins import CONTRACT, hookimpl
from pretrain.plugins.backend import Unavailable
from pretrain.plugins.offer import offer_unless
from pretrain.reference.norm import LayerNorm


class ChoosyBackend(CpuBackend):
    name = "choosy"


class AbsentBackend(CpuBackend):
    name = "absent"

    def availability(self):
        return Unavailable("no choosy device is plugged in", "plug one in")


class Hooks:
    """A layer norm that declines what the function `declines` gives a reason against."""

    CONTRACT = CONTRACT

    def __init__(self, backend):
        self.backend, self.declines = backend, lambda request: ""

    @hookimpl
    def pretrain_backend(self):
        return self.backend

    @hookimpl
    def pretrain_norm(self, request):
        reason = self.declines(request)
        return None if reason is None else offer_unless(reason, name="picky", build=lambda _: LayerNorm(request))


CHOOSY, ABSENT = Hooks(ChoosyBackend()), Hooks(AbsentBackend())
