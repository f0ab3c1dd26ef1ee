"""megatron-core's optimizer with the negotiated kernels, and its gradients and process groups with our options."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from pretrain.plugins.backend import Overflow
    from pretrain.plugins.signatures import GradientNormFn, ProcessGroupOptionsFn


KIND = "kind"
"""Entry of every parameter group; see `pretrain.engine.optimizers.optimizer.Optimizer.kind_of`."""


def install(adam: type[Any], gradient_norm: GradientNormFn, overflow: Overflow | None) -> None:
    """Put a class of optimizers and the negotiated gradient norm in place of apex's in megatron-core 0.16.1.

    Call it after megatron.core is imported and before `get_megatron_optimizer`. Every name set here is bound at import:

    * optimizer/__init__.py: `Adam`, `USING_PYTORCH_OPTIMIZER` (torch's Adam keeps `step` per parameter, which the
      distributed optimizer cannot reshard).
    * optimizer/distrib_optimizer.py: the same for its checks of the state's layout.
    * optimizer/optimizer.py `get_grad_norm_fp32`, `clip_grad_by_total_norm_fp32`: one `.item()` per tensor without
      apex, one per step with it.
    * optimizer/optimizer.py `ChainedOptimizer.get_grad_norm`: experts have an optimizer and a norm of their own,
      which are added up on the host.
    * optimizer/optimizer.py `_multi_tensor_copy_this_to_that`: a Python loop of copies for bf16.
    * optimizer/optimizer.py `param_group_identifier_keys`: `load_state_dict` would take groups that only `KIND` tells
      apart for one. The distributed optimizer keeps its own: it updates for Adam alone, whose weights are of one kind.
    """
    import megatron.core.optimizer as package  # noqa: PLC0415  after the bridge
    from megatron.core.optimizer import distrib_optimizer, optimizer  # noqa: PLC0415

    package.Adam = adam
    package.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.Adam = adam
    distrib_optimizer.HAVE_APEX_OR_TE = True
    distrib_optimizer.USING_APEX_OPTIMIZER = True
    distrib_optimizer.USING_TE_OPTIMIZER = False
    optimizer.get_grad_norm_fp32 = _GradientNorm(gradient_norm)
    optimizer.clip_grad_by_total_norm_fp32 = clip_by_norm
    optimizer.ChainedOptimizer.get_grad_norm = chained_norm
    optimizer.param_group_identifier_keys = tuple(dict.fromkeys((*optimizer.param_group_identifier_keys, KIND)))
    optimizer._multi_tensor_copy_this_to_that = copy_tensors  # noqa: SLF001
    if overflow is not None:
        _watch(optimizer.MixedPrecisionOptimizer, overflow)


class _GradientNorm:
    """Euclidean norm over this rank's gradients and those of the group, as a tensor."""

    def __init__(self, kernel: GradientNormFn) -> None:
        self._kernel = kernel

    def __call__(
        self,
        grads_for_norm: Sequence[Tensor],
        norm_type: float = 2,
        grad_stats_parallel_group: dist.ProcessGroup | None = None,
    ) -> Tensor:
        if norm_type != 2:
            msg = f"gradient norm of type {norm_type}: only 2, the Euclidean norm"
            raise ValueError(msg)
        squared = self._kernel(grads_for_norm).square()
        dist.all_reduce(squared, group=grad_stats_parallel_group)
        return squared.sqrt()


@torch.no_grad()
def chained_norm(chained: Any) -> Tensor:
    """Return the norm over several optimizers, fp32 scalar, in place of `ChainedOptimizer.get_grad_norm`."""
    parts = chained.chained_optimizers
    if len(parts) > 1 and chained.grads_states_parallel_group_is_shared():
        from megatron.core.optimizer import optimizer  # noqa: PLC0415  after the bridge

        gradients = [gradient for part in parts for gradient in part.get_main_grads_for_grad_norm()]
        group = chained.get_grad_stats_parallel_group()
        return cast("Tensor", optimizer.get_grad_norm_fp32(gradients, grad_stats_parallel_group=group))
    norms = [part.get_grad_norm() for part in parts]
    together: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return together


@torch.no_grad()
def clip_by_norm(
    parameters: Iterable[Tensor],
    max_norm: float,
    total_norm: Tensor,
    use_decoupled_grad: bool = False,  # noqa: ARG001  megatron-core's signature
) -> None:
    """Scale gradients in place by min(1, max_norm / total_norm), on the device."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, (max_norm / (total_norm + 1.0e-6)).clamp(max=1.0))


def copy_tensors(this: list[Tensor], that: list[Tensor], overflow_buf: Tensor | None = None) -> None:  # noqa: ARG001
    """Copy each tensor of `this` into its counterpart of `that`, which may have another dtype."""
    if this:
        torch._foreach_copy_(that, this)


def _watch(optimizer_class: Any, overflow: Overflow) -> None:
    """Treat an overflow flag of any rank as an inf found by megatron-core, on every rank.

    The flag is reduced over the world: gradients were reduced over the data-parallel ranks before, and megatron-core's
    own check is reduced only over the model-parallel ranks (`grad_stats_parallel_group`).
    """
    check = optimizer_class._unscale_main_grads_and_check_for_nan  # noqa: SLF001

    def check_with_flag(self: Any) -> bool:
        flag = overflow.read()
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(check(self)) or bool(flag.item())

    if getattr(check, "watches_overflow", False):
        return
    check_with_flag.watches_overflow = True  # type: ignore[attr-defined]
    optimizer_class._unscale_main_grads_and_check_for_nan = check_with_flag  # noqa: SLF001


def keep_local_sums() -> None:
    """Have megatron-core's check of local gradients keep their sum, in the group of buckets, and not wait for it."""
    from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup  # noqa: PLC0415  after the bridge

    _ParamAndGradBucketGroup.check_grads = _keep_sum


def local_sum(chunks: Sequence[Any]) -> Tensor:
    """Return the sum of this rank's own gradients in the last step, fp32 scalar; not finite if one of them is not."""
    groups = [group for chunk in chunks for group in chunk.bucket_groups + chunk.expert_parallel_bucket_groups]
    return torch.stack([group.local_sum for group in groups]).sum()


def _keep_sum(group: Any, check_for_nan_or_inf: bool, check_for_large: bool) -> None:  # noqa: ARG001  its signature
    sums = [bucket.grad_data.sum(dtype=torch.float32) for bucket in group.buckets]
    group.local_sum = torch.stack(sums).sum()


def install_group_options(options: ProcessGroupOptionsFn) -> None:
    """Let `initialize_model_parallel` call the negotiated function; its own `get_nccl_options` serves only NCCL."""
    from megatron.core import parallel_state  # noqa: PLC0415  after the bridge

    parallel_state.get_nccl_options = lambda pg_name, nccl_comm_cfgs: options(pg_name)  # noqa: ARG005


def sum_over_tensor_ranks(partial_gradients: Callable[[Any], Iterable[Any]]) -> None:
    """Have megatron-core 0.16.1 sum these gradients over the tensor-parallel ranks, and no others."""
    # finalize_model_grads by itself sums those of weights with a mark, and of others whose names it knows.
    module: Any = import_module("megatron.core.distributed.finalize_model_grads")  # the package has a function so named
    module._allreduce_non_tensor_model_parallel_grads = partial(_sum_gradients, partial_gradients)  # noqa: SLF001


def _sum_gradients(
    partial_gradients: Callable[[Any], Iterable[Any]],
    model: Sequence[Any],
    _config: Any,
    group: dist.ProcessGroup,
) -> None:
    """Sum in one collective, as megatron-core's function does."""
    if group.size() == 1:
        return
    weights = [weight for chunk in model for weight in partial_gradients(chunk) if weight.requires_grad]
    if any(getattr(weight, "average_gradients_across_tp_domain", False) for weight in weights):
        msg = "average_gradients_across_tp_domain: gradients are summed over the tensor-parallel ranks, never averaged"
        raise NotImplementedError(msg)
    gradients = [weight.main_grad.data for weight in weights if getattr(weight, "main_grad", None) is not None]
    if not gradients:
        return
    together = _flatten_dense_tensors(gradients)  # type: ignore[no-untyped-call]
    dist.all_reduce(together, group=group)
    parts = _unflatten_dense_tensors(together, gradients)  # type: ignore[no-untyped-call]
    for gradient, total in zip(gradients, parts, strict=True):
        gradient.copy_(total)
