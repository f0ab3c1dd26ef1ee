"""Adams whose state in bf16 is wrong, each by a plausible mistake."""

from __future__ import annotations

import torch

from pretrain.plugins.offer import Offer
from pretrain.plugins.signatures import OptimizerKernels
from pretrain.reference.adam import ForeachAdam, gradient_norm, keeping


class Adam:
    """A step tensor by tensor; what `advance` returns moves the weights."""

    def _update(self, group, parameters, grads, means, squares):
        (beta1, beta2), rate, step = group["betas"], group["lr"], group["step"]
        for parameter, given, mean, square in zip(parameters, grads, means, squares, strict=True):
            gradient = given if self.adam_w_mode else given + group["weight_decay"] * parameter
            if self.adam_w_mode:
                parameter.mul_(1 - rate * group["weight_decay"])
            first = self.advance(mean, beta1, gradient) / (1 - beta1**step)
            second = self.advance(square, beta2, gradient * gradient) / (1 - beta2**step)
            parameter.addcdiv_(first, second.sqrt() + group["eps"], value=-rate)

    def advance(self, kept, beta, value):
        exact = kept.float().lerp(value, 1 - beta)
        self.keep(kept, exact)
        return exact

    def keep(self, kept, exact):
        kept.copy_(exact)


class Truncates(Adam):
    """Keeps the upper half of the bits."""

    def keep(self, kept, exact):
        is_fp32 = kept.dtype is torch.float32
        kept.copy_(exact if is_fp32 else (exact.view(torch.int32) & -(1 << 16)).view(torch.float32))


class UpdatesFromTheRounded(Adam):
    def advance(self, kept, beta, value):
        super().advance(kept, beta, value)
        return kept.float()


class MultipliesInBf16(Adam):
    def advance(self, kept, beta, value):
        return super().advance(kept.mul_(beta), 0.0, kept.float() + (1 - beta) * value)


class LoadsInFp32(Adam):
    """As torch does by itself."""

    load_state_dict = torch.optim.Optimizer.load_state_dict


WRONG = {
    "truncates_state": Truncates,
    "updates_from_the_rounded": UpdatesFromTheRounded,
    "multiplies_in_bf16": MultipliesInBf16,
    "loads_in_fp32": LoadsInFp32,
}


def adams(request):
    """Kernels for requests with a state in bf16."""
    right, norm = keeping(ForeachAdam, request), gradient_norm(request.device_type)
    if right is ForeachAdam:
        return []
    classes = {"keeps_fp32": ForeachAdam} | {name: type(name, (wrong, right), {}) for name, wrong in WRONG.items()}
    return [
        Offer(name=name, build=lambda _, adam=adam: OptimizerKernels(adam=adam, gradient_norm=norm))
        for name, adam in classes.items()
    ]
