"""Memory of one call of a kernel: output, gradients, and what it keeps for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretrain.plugins.signatures import Documents

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from pretrain.conformance.example_calls import ExampleCall

    Kind = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Memory of one call."""

    output: Kind
    gradients: dict[str, Kind | None]  # by the input's name; None where it gets none
    kept_inputs: frozenset[str]  # names of the arguments that are kept for the backward pass
    kept: tuple[int, ...]  # bytes of each further storage that is kept for it, rounded up as an allocator does

    def difference(self, other: Footprint) -> str:
        """Describe how the stand-in's memory differs from this kernel's; "" if it does not."""
        found = [
            f"{name}: kernel {mine}, stand-in {theirs}"
            for name, mine, theirs in (
                ("output", self.output, other.output),
                ("gradients", self.gradients, other.gradients),
                ("kept inputs", sorted(self.kept_inputs), sorted(other.kept_inputs)),
            )
            if mine != theirs
        ]
        if sum(self.kept) != sum(other.kept):
            found.append(
                f"kept bytes: kernel {sum(self.kept)} in {self.kept}, stand-in {sum(other.kept)} in {other.kept}"
            )
        return "\n".join(found)


def footprint(kernel: Callable[..., Tensor], call: ExampleCall) -> Footprint:
    """Call a kernel, forward and backward, on its device or on fake tensors, and return the memory of the call."""
    given, constants = differentiable(call), call.constants
    kept: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        kept.append(x.detach())
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        output = kernel(**given, **constants)
    storages = {_storage(x): x for x in kept}
    names = {_storage(x): name for name, argument in (given | constants).items() for x in _tensors(argument)}
    sizes = [rounded(x.untyped_storage().nbytes()) for key, x in storages.items() if key not in names]
    grads = gradients(output, given)
    return Footprint(
        output=_kind(output),
        gradients={name: None if grad is None else _kind(grad) for name, grad in grads.items()},
        kept_inputs=frozenset(names[key] for key in storages if key in names),
        kept=tuple(sorted(sizes)),
    )


def _tensors(argument: Any) -> tuple[Tensor, ...]:
    if isinstance(argument, Documents):
        return argument.query_ends, argument.key_ends
    return (argument,) if isinstance(argument, torch.Tensor) else ()


def peak_bytes(kernel: Callable[..., Tensor], call: ExampleCall) -> int:
    """Return the most bytes at a time of the storages that torch makes in a call, forward and backward."""
    given = differentiable(call)
    with Allocations() as allocations:
        output = kernel(**given, **call.constants)
        grads = gradients(output, given)
    del grads
    return int(allocations.peak)


def differentiable(call: ExampleCall) -> dict[str, Any]:
    """Return copies of the inputs that need gradients, as a layer's activations do; a weight has its `main_grad`."""
    given: dict[str, Any] = {name: x.detach().requires_grad_().clone() for name, x in call.inputs.items()}
    if call.main_grad_dtype is not None:
        given["weight"].main_grad = torch.zeros_like(call.inputs["weight"], dtype=call.main_grad_dtype)
        given["weight"].grad_added_to_main_grad = False
    return given


def gradients(output: Tensor, given: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """Return the gradient of every input, for a gradient of ones."""
    grads = torch.autograd.grad(output, list(given.values()), torch.ones_like(output), allow_unused=True)
    return dict(zip(given, grads, strict=True))


def _kind(x: Tensor) -> Kind:
    return tuple(x.shape), x.dtype


def _storage(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)  # noqa: SLF001  its identity: fake storages have no address


BLOCK = 512
"""Bytes to which the allocators of CUDA and of Ascend round a tensor up (kMinBlockSize in c10/cuda)."""


def rounded(size: int) -> int:
    """Return the bytes that an allocator takes for a tensor."""
    return -(-size // BLOCK) * BLOCK


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """Context that counts new storages; what an operation allocates and frees itself is not seen."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation of torch, and count its results."""
        result = func(*args, **(kwargs or {}))
        self._known = {key: each for key, each in self._known.items() if not each[0].expired()}  # type: ignore[no-untyped-call]
        for leaves, counted in ((tree_leaves((args, kwargs)), False), (tree_leaves(result), True)):
            for x in leaves:
                if isinstance(x, torch.Tensor):
                    self._note(x, counted=counted)
        self.peak = max(self.peak, sum(size for _, size in self._known.values()))
        return result

    def _note(self, x: torch.Tensor, *, counted: bool) -> None:
        storage = x.untyped_storage()
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        if reference.cdata not in self._known:
            self._known[reference.cdata] = (reference, rounded(storage.nbytes()) if counted else 0)
