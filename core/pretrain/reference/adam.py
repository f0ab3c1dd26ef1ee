"""Adam and AdamW shaped like apex's FusedAdam, and the gradient norm."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from pretrain.reference.precision import wide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from pretrain.plugins.signatures import GradientNormFn


class Adam(torch.optim.Optimizer):
    """The shape: one `step` for each parameter group, and `exp_avg` and `exp_avg_sq` for each parameter.

    megatron-core builds it as it builds apex's: optimizer/__init__.py 347-363. How a group is updated is `_update`.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
    ) -> None:
        """Make an optimizer.

        Args:
            params: parameters, or groups of them.
            lr: learning rate.
            betas: decay of the running means of the gradient and of its square.
            eps: added to the square root of the second.
            weight_decay: decoupled from the gradient with `adam_w_mode` (Loshchilov and Hutter 2019,
                arXiv 1711.05101), added to the gradient without (Kingma and Ba 2015, arXiv 1412.6980).
            adam_w_mode: see there.
        """
        self.adam_w_mode = adam_w_mode
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                states = [self._state_of(parameter) for parameter in parameters]
                self._update(
                    group,
                    parameters,
                    [parameter.grad for parameter in parameters],
                    [state["exp_avg"] for state in states],
                    [state["exp_avg_sq"] for state in states],
                )
        return loss

    @abstractmethod
    def _update(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
    ) -> None: ...

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


class ForeachAdam(Adam):
    """In plain torch, a list of tensors at a time."""

    def _update(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
    ) -> None:
        beta1, beta2 = group["betas"]
        lr, weight_decay, step = group["lr"], group["weight_decay"], group["step"]
        if weight_decay and self.adam_w_mode:
            torch._foreach_mul_(parameters, 1 - lr * weight_decay)
        elif weight_decay:
            grads = list(torch._foreach_add(grads, parameters, alpha=weight_decay))  # noqa: SLF001
        torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
        torch._foreach_mul_(exp_avg_sqs, beta2)
        torch._foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
        denominators = torch._foreach_sqrt(exp_avg_sqs)  # noqa: SLF001
        torch._foreach_div_(denominators, (1 - beta2**step) ** 0.5)
        torch._foreach_add_(denominators, group["eps"])
        torch._foreach_addcdiv_(parameters, exp_avgs, denominators, -lr / (1 - beta1**step))


class FusedAdam(Adam):
    """With torch's fused kernel, which exists for the CPU, CUDA and Ascend: one pass over all tensors of a group."""

    def _update(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
    ) -> None:
        update = torch._fused_adamw_ if self.adam_w_mode else torch._fused_adam_
        step = torch.full((), float(group["step"]), device=parameters[0].device)  # the kernel only reads it
        update(
            parameters,
            grads,
            exp_avgs,
            exp_avg_sqs,
            [],
            [step] * len(parameters),
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )


def gradient_norm(device_type: str) -> GradientNormFn:
    """Return a `GradientNormFn` without host synchronization, whose error does not grow with the tensors.

    torch adds up on the CPU one after the other: of 38 million entries, GPT-2's embedding, `_foreach_norm` in fp32 is
    0.3 % off. By blocks of blocks it is 1e-6.
    """

    def norm(tensors: Sequence[Tensor]) -> Tensor:
        if not tensors:
            return torch.zeros((), device=device_type)
        small = [tensor for tensor in tensors if tensor.numel() <= BLOCK]
        parts = [_block_norms(tensor) for tensor in tensors if tensor.numel() > BLOCK]
        if small:
            parts.append(torch.stack(torch._foreach_norm(small, 2, dtype=wide(small[0].dtype))))  # noqa: SLF001
        norms = torch.cat(parts)
        while norms.numel() > BLOCK:
            norms = _block_norms(norms)
        total: Tensor = torch.linalg.vector_norm(norms)
        return total

    return norm


BLOCK = 1024
"""Entries that are added up one after the other."""


def _block_norms(tensor: Tensor) -> Tensor:
    """Return the norms of neighbouring blocks of entries, the last one shorter."""
    flat, dtype = tensor.reshape(-1), wide(tensor.dtype)
    whole = flat.numel() // BLOCK * BLOCK
    norms: Tensor = torch.linalg.vector_norm(flat[:whole].view(-1, BLOCK), dim=1, dtype=dtype)
    if whole == flat.numel():
        return norms
    return torch.cat((norms, torch.linalg.vector_norm(flat[whole:], dtype=dtype).reshape(1)))
