"""Signatures of kernels: one callable per operation.

Tensors are on the request's device, of the request's dtype where nothing else is said, and may be non-contiguous.
Every callable is differentiable where torch's own counterpart is. Shape letters: see `requests`. Arguments are passed
by position, so that names are a plugin's own; what stands after `*` is passed by name.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup


class SoftmaxFn(Protocol):
    """Scale, mask, softmax."""

    def __call__(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the weights of scores [b, n, queries, keys], in their shape and dtype, under the request's `Mask`.

        Masked entries and fully masked rows are exactly zero.
        """


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Documents:
    """The documents of a call under `Mask.DOCUMENTS`: those of its first sample, then those of the next one.

    Document i has the queries from query_ends[i] to query_ends[i + 1] and the keys from key_ends[i] to key_ends[i + 1],
    counted over all samples, each of which has as many as any other. One with queries has at least as many keys, and
    its last query sees its last key. It may have keys alone, which nobody sees, or be empty.
    """

    query_ends: Tensor
    """int32 [documents + 1] on the device, from 0 to b * queries, ascending."""
    key_ends: Tensor
    """int32 [documents + 1] on the device, from 0 to b * keys, ascending."""
    query_ends_on_host: tuple[int, ...]
    """The same numbers, for kernels that take them on the host."""
    key_ends_on_host: tuple[int, ...]
    """The same numbers."""

    @classmethod
    def of(cls, ends: Tensor, on_host: Sequence[Sequence[int]] | None = None) -> Documents:
        """Take the ends of queries and keys, int32 [2, documents + 1]; on a device `on_host` has the same numbers."""
        if on_host is None and ends.device.type != "cpu":
            msg = f"ends on {ends.device} without the same numbers on the host, for which a call would wait"
            raise ValueError(msg)
        queries, keys = map(tuple, ends.tolist() if on_host is None else on_host)
        query_ends, key_ends = ends.unbind()
        return cls(query_ends=query_ends, key_ends=key_ends, query_ends_on_host=queries, key_ends_on_host=keys)

    def placed(self, place: Callable[[Tensor], Tensor]) -> Documents:
        """Return the same, with the tensors that `place` makes of these."""
        return replace(self, query_ends=place(self.query_ends), key_ends=place(self.key_ends))

    @property
    def queries(self) -> list[int]:
        """The number of queries of each document."""
        return [end - begin for begin, end in pairwise(self.query_ends_on_host)]

    @property
    def keys(self) -> list[int]:
        """The number of keys of each document."""
        return [end - begin for begin, end in pairwise(self.key_ends_on_host)]


class AttentionFn(Protocol):
    """Attention without projections."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, *, training: bool = True) -> Tensor:
        """Return the context [s, b, n * d] of query [s, b, n, d], key and value [keys, b, g, d], under the `Mask`.

        The mask is a bool tensor, `Documents` or None, as the request's `Mask` says. There are as many keys as queries
        but where the request has `keys`. Rows of queries that see no key are zero. Only while `training` the request's
        dropout applies, which draws from the device's default generator.
        """


class NormFn(Protocol):
    """Layer norm or RMS norm."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., h] in the dtype of `x`; weight and bias are [h], bias is None for RMSNorm."""


class RotaryFn(Protocol):
    """Rotary position embedding."""

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate [s, b, n, d] by cos and sin, both [s, 1, 1, rotary_size] in fp32, and return a new tensor.

        With YaRN both are multiplied by one factor, so that cos^2 + sin^2 is not 1.
        """


class ActivationFn(Protocol):
    """Bias and activation of the MLP."""

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return [..., features] for x [..., features] (swiglu: [..., 2 * features]), bias [last dimension of x]."""


class BiasDropoutAddFn(Protocol):
    """residual + dropout(x + bias).

    A pipeline stage frees its output after sending it: the backward pass must not need the tensor that is returned.
    """

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor, *, training: bool = True) -> Tensor:
        """Return [s, b, h] for x and residual [s, b, h], bias [h]; draws from the device's default generator."""


class CrossEntropyFn(Protocol):
    """Vocabulary-parallel cross entropy."""

    def __call__(self, logits: Tensor, target: Tensor, group: ProcessGroup | None = None) -> Tensor:
        """Return the loss of every token, fp32 [s, b], equal on all ranks of the group, which is None where t is 1.

        logits are this rank's columns [s, b, padded_vocab_size / t]; the kernel may overwrite them, and in its backward
        pass what it keeps. target is int64 [s, b], entries of the whole vocabulary, below `vocab_size`.
        """


class LinearFn(Protocol):
    """A linear of the model; see `LinearRequest` for the two forms of its call, and for the weight gradient."""

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, group: ProcessGroup | None = None
    ) -> Tensor:
        """Return x weight^T + bias, [s, b, out of this rank], for weight [out of this rank, in] and bias.

        x is [s, b, in], with sequence_parallel [s / t, b, in]. The tensor-parallel group is None where t is 1 or the
        input's gradient is not to be reduced.
        """


class GroupedLinearFn(Protocol):
    """One linear of all experts of this rank."""

    def __call__(self, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        """Return x weight[e]^T, [rows, out], for x [rows, in] and weight [experts, out, in].

        The rows are sorted by expert; counts, int64 [experts] on the device, has how many each expert has, and zeros.
        A kernel should not wait for the device to read them. An expert without rows gets a gradient of zeros.
        """


class RouterFn(Protocol):
    """The experts of each token."""

    def __call__(self, logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the experts' weights, fp32 [n, E], zero where not chosen, and the choice, bool [n, E].

        logits are fp32 [n, E], bias fp32 [E]. Every row of the choice has exactly k True, also where logits are NaN,
        and the weights with them. Differentiable in the logits.
        """


class PermuteFn(Protocol):
    """The copies of tokens for their experts."""

    def __call__(self, tokens: Tensor, routing_map: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Return the rows [n k, h], their weights fp32 [n k], and the order, an object of the kernel's own.

        tokens are [n, h], routing_map bool [n, E] with k True in each row, probs fp32 [n, E]. The rows are sorted by
        expert, those of an expert by token. Differentiable in tokens and probs.
        """


class UnpermuteFn(Protocol):
    """The sums of each token's rows."""

    def __call__(self, rows: Tensor, order: Any, tokens: int) -> Tensor:
        """Return [n, h], for each of n tokens the sum of its rows of [n k, h], which `order` tells; differentiable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MoePermutation:
    """The way of tokens to their experts and back."""

    permute: PermuteFn
    """See `PermuteFn`."""
    unpermute: UnpermuteFn
    """See `UnpermuteFn`."""


class GradientNormFn(Protocol):
    """The Euclidean norm over many tensors."""

    def __call__(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return a scalar fp32 tensor on the device; no host synchronization. An empty sequence gives zero.

        Tensors are all of one dtype: fp32 gradients, or parameters in the training's dtype, summed up in fp32.
        """


class OrthogonalizeFn(Protocol):
    """The Newton-Schulz iteration of Muon (Jordan et al. 2024)."""

    def __call__(self, matrices: Tensor, steps: int) -> Tensor:
        """Return each matrix U S V^T of fp32 [k, m, n] as about U V^T, fp32 [k, m, n]; no host synchronization.

        X = M / max(|M|, 1e-7) with the Frobenius norm, then `steps` times X <- a X + (b A + c A^2) X for A = X X^T, and
        a, b, c = 3.4445, -4.7750, 2.0315. In fp32: layouts of one recipe would differ by the rounding of 16 bits.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerKernels:
    """The parts of an optimizer step."""

    adam: type[torch.optim.Optimizer]
    """A `torch.optim.Optimizer` class shaped like apex's FusedAdam: `adam(params, lr, betas, eps, weight_decay,
    adam_w_mode)`, `step` counted in the parameter group, state of `exp_avg` and `exp_avg_sq` only. This is what lets a
    checkpoint change its data-parallel size.

    The state has the request's dtypes. Where one is bf16, a step reads it, computes in fp32, updates the weights from
    the fp32 state, and stores that rounded to nearest; `load_state_dict` rounds too, where torch's would make it fp32.
    There is never a copy of the whole state in fp32."""
    gradient_norm: GradientNormFn
    """See `GradientNormFn`."""
    orthogonalize: OrthogonalizeFn | None = None
    """For `optimizer.name: muon`; None: the reference's, in plain torch. Contract 1.4."""


class ProcessGroupOptionsFn(Protocol):
    """Options of one process group."""

    def __call__(self, group_name: str) -> Any | None:
        """Return what `torch.distributed.new_group(pg_options=...)` takes, or None, for "tp", "pp", "dp", ..."""


_TYPES: Mapping[str, type] = {
    "activation": ActivationFn,
    "attention": AttentionFn,
    "bias_dropout_add": BiasDropoutAddFn,
    "cross_entropy": CrossEntropyFn,
    "grouped_linear": GroupedLinearFn,
    "linear": LinearFn,
    "norm": NormFn,
    "rotary": RotaryFn,
    "router": RouterFn,
    "softmax": SoftmaxFn,
}
SIGNATURES: Mapping[str, inspect.Signature] = {
    operation: inspect.signature(vars(kind)["__call__"]) for operation, kind in _TYPES.items()
}
"""Operation -> its signature, with `self`; of those whose kernel is one function of tensors."""


def by_position(operation: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes the names of the operation's signature, and calls the kernel as the model does.

    All parameters are passed, those left out with their default, and by name only what stands after `*`.
    """
    signature = SIGNATURES[operation]

    def call(*given: Any, **named: Any) -> Any:
        bound = signature.bind(kernel, *given, **named)
        bound.apply_defaults()
        return kernel(*bound.args[1:], **bound.kwargs)

    return call
