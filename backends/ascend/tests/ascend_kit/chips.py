"""The ascend backend's answers for a chip that is not here, as a backend that the conformance kit can test on a CPU.

Tensors are on the CPU, and the operators are those of `ascend_kit.operators`.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from ascend_kit import operators
from pretrain.cpu.backend import CpuBackend
from pretrain.plugins import hookimpl
from pretrain.plugins.offer import Offer
from pretrain.plugins.signatures import OptimizerKernels
from pretrain_ascend import plugin


class Chip:
    """Hooks of the backend, for a named chip."""

    def __init__(self, device_name):
        self.device_name = device_name

    @hookimpl
    def pretrain_backend(self):
        return CpuBackend()

    @hookimpl
    def pretrain_attention(self, request):
        return self._answers("attention", request)

    @hookimpl
    def pretrain_softmax(self, request):
        return self._answers("softmax", request)

    @hookimpl
    def pretrain_norm(self, request):
        return self._answers("norm", request)

    @hookimpl
    def pretrain_rotary(self, request):
        return self._answers("rotary", request)

    @hookimpl
    def pretrain_activation(self, request):
        return self._answers("activation", request)

    @hookimpl
    def pretrain_cross_entropy(self, request):
        return self._answers("cross_entropy", request)

    @hookimpl
    def pretrain_optimizer(self, request):
        return self._answers("optimizer", request)

    def _answers(self, operation, request):
        answers = getattr(plugin, f"pretrain_{operation}")(replace(request, device_name=self.device_name))
        return [_on_the_cpu(answer) for answer in (answers if isinstance(answers, list) else [answers])]


def _on_the_cpu(answer):
    if not isinstance(answer, Offer):
        return answer
    return replace(answer, build=lambda built: with_stand_ins(answer.build(built)))


def with_stand_ins(kernel):
    """Return the kernel with the stand-ins in the place of torch_npu's operators."""
    if isinstance(kernel, OptimizerKernels):
        return kernel

    def call(*arguments, **options):
        with mock.patch("pretrain_ascend.kernels.operators.call", operators.call):
            return kernel(*arguments, **options)

    return call


a2, first = Chip("Ascend910B3"), Chip("Ascend910A")
