"""Adam and AdamW with the interface of apex's FusedAdam, and the gradient norm."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from pretrain.reference.accumulation import accumulation_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from pretrain.plugins.requests import OptimizerRequest
    from pretrain.plugins.signatures import GradientNormFn

    Group = dict[str, Any]
    Tensors = list[Tensor]


class Adam(torch.optim.Optimizer):
    """Base with apex's state: one `step` per parameter group, and `exp_avg` and `exp_avg_sq` per parameter.

    megatron-core builds it like apex's (_get_megatron_optimizer_based_on_param_groups). `_update` updates one group.
    """

    dtypes: ClassVar[Mapping[str, torch.dtype | None]] = {"exp_avg": None, "exp_avg_sq": None}  # None: the parameter's

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

        Weight decay is decoupled from the gradient with `adam_w_mode` (Loshchilov and Hutter 2019, arXiv 1711.05101),
        otherwise added to it (Kingma and Ba 2015, arXiv 1412.6980). `eps` is added to the square root of the mean of
        the square.
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
        self, group: dict[str, Any], parameters: Tensors, grads: Tensors, means: Tensors, squares: Tensors
    ) -> None:
        """Update one group; `means` and `squares` are exp_avg and exp_avg_sq of its parameters."""

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state |= {name: torch.zeros_like(parameter, dtype=dtype) for name, dtype in self.dtypes.items()}
        return state


class ForeachAdam(Adam):
    """Adam in plain torch, with operations on lists of tensors."""

    def _update(
        self, group: dict[str, Any], parameters: Tensors, grads: Tensors, means: Tensors, squares: Tensors
    ) -> None:
        beta1, beta2 = group["betas"]
        lr, weight_decay, step = group["lr"], group["weight_decay"], group["step"]
        if weight_decay and self.adam_w_mode:
            torch._foreach_mul_(parameters, 1 - lr * weight_decay)
        elif weight_decay:
            grads = list(torch._foreach_add(grads, parameters, alpha=weight_decay))  # noqa: SLF001
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        denominators = torch._foreach_sqrt(squares)  # noqa: SLF001
        torch._foreach_div_(denominators, (1 - beta2**step) ** 0.5)
        torch._foreach_add_(denominators, group["eps"])
        torch._foreach_addcdiv_(parameters, means, denominators, -lr / (1 - beta1**step))


class FusedAdam(Adam):
    """Adam by torch's fused kernel for CPU, CUDA and Ascend: one pass over all tensors of a group."""

    def _update(
        self, group: dict[str, Any], parameters: Tensors, grads: Tensors, means: Tensors, squares: Tensors
    ) -> None:
        update = torch._fused_adamw_ if self.adam_w_mode else torch._fused_adam_
        step = torch.full((), float(group["step"]), device=parameters[0].device)  # the kernel only reads it
        update(
            parameters,
            grads,
            means,
            squares,
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


AT_ONCE = 1 << 22
"""Entries whose state is in fp32 at the same time: 16 MiB for each of the two, small beside any model's state. Seen on
two CPU cores, 2^20 are about as fast, and 2^24 up to twice as slow: their buffers are new pages each time. Not seen: on
a GPU some 50 bytes an entry are 0.06 ms of an H100's memory, more than the launches of a batch take."""


def keeping(adam: type[Adam], request: OptimizerRequest) -> type[Adam]:
    """Return the class with its state in the dtypes of the request; with fp32 alone the class itself."""
    if set(request.state_dtypes.values()) == {torch.float32}:
        return adam
    return type(adam.__name__, (_RoundedState, adam), {"dtypes": request.state_dtypes})


class _RoundedState(Adam):
    """Keeps the state in fewer bits than it is updated in: a batch of it is made fp32, updated, and rounded again.

    The weights are updated from the state before it is rounded.
    """

    def _update(
        self, group: dict[str, Any], parameters: Tensors, grads: Tensors, means: Tensors, squares: Tensors
    ) -> None:
        adam: Any = super()
        for batch in _batches(parameters, grads, means, squares):
            *updated, kept_means, kept_squares = batch
            in_fp32 = _in_fp32(kept_means), _in_fp32(kept_squares)
            adam._update(group, *updated, *in_fp32)  # noqa: SLF001  of the class that is kept
            for kept, state in zip((kept_means, kept_squares), in_fp32, strict=True):
                if kept is not state:
                    torch._foreach_copy_(kept, state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state and round it; torch would make it fp32 as the parameters are, all of it at once."""
        super().load_state_dict({**state_dict, "state": {}})
        saved = (number for group in state_dict["param_groups"] for number in group["params"])
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        for number, parameter in zip(saved, parameters, strict=True):
            if given := state_dict["state"].get(number):
                self.state[parameter] = {
                    name: given[name].to(parameter.device, dtype) for name, dtype in self.dtypes.items()
                }


def _batches(*lists: Tensors) -> Iterator[list[Tensors]]:
    """Yield the lists in batches of `AT_ONCE` entries; a longer tensor is cut along its first dimension."""
    batch: list[tuple[Tensor, ...]] = []
    entries = 0
    for tensors in zip(*lists, strict=True):
        for parts in zip(*map(_cut, tensors), strict=True):
            if batch and entries + parts[0].numel() > AT_ONCE:
                yield [list(each) for each in zip(*batch, strict=True)]
                batch, entries = [], 0
            batch.append(parts)
            entries += parts[0].numel()
    yield [list(each) for each in zip(*batch, strict=True)]


def _cut(tensor: Tensor) -> Sequence[Tensor]:
    if tensor.numel() <= AT_ONCE:
        return (tensor,)
    rows = max(1, AT_ONCE * len(tensor) // tensor.numel())
    parts: Sequence[Tensor] = tensor.detach().split(rows)  # type: ignore[no-untyped-call]
    return parts


def _in_fp32(tensors: Tensors) -> Tensors:
    if tensors[0].dtype is torch.float32:
        return tensors
    wide = [torch.empty_like(tensor, dtype=torch.float32) for tensor in tensors]
    torch._foreach_copy_(wide, tensors)
    return wide


def gradient_norm(device_type: str) -> GradientNormFn:
    """Return a `GradientNormFn` without host synchronization; its error does not grow with the size of the tensors.

    On the CPU torch sums sequentially: for the 38 million entries of GPT-2's embedding, `_foreach_norm` in fp32 is 0.3
    % off. With blocks of blocks the error is 1e-6.
    """

    def norm(tensors: Sequence[Tensor]) -> Tensor:
        if not tensors:
            return torch.zeros((), device=device_type)
        small = [tensor for tensor in tensors if tensor.numel() <= BLOCK]
        parts = [_block_norms(tensor) for tensor in tensors if tensor.numel() > BLOCK]
        if small:
            dtype = accumulation_dtype(small[0].dtype)
            parts.append(torch.stack(torch._foreach_norm(small, 2, dtype=dtype)))  # noqa: SLF001
        norms = torch.cat(parts)
        while norms.numel() > BLOCK:
            norms = _block_norms(norms)
        total: Tensor = torch.linalg.vector_norm(norms)
        return total

    return norm


BLOCK = 1024
"""Entries that are summed sequentially."""


def _block_norms(tensor: Tensor) -> Tensor:
    """Return the norms of consecutive blocks of entries; the last block may be shorter."""
    flat, dtype = tensor.reshape(-1), accumulation_dtype(tensor.dtype)
    whole = flat.numel() // BLOCK * BLOCK
    norms: Tensor = torch.linalg.vector_norm(flat[:whole].view(-1, BLOCK), dim=1, dtype=dtype)
    if whole == flat.numel():
        return norms
    return torch.cat((norms, torch.linalg.vector_norm(flat[whole:], dtype=dtype).reshape(1)))
