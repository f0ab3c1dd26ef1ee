"""Trial of one kernel: a call at the sizes of the training, forward and backward, compared in part with an oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.comparison import TOLERANCE
from pretrain.tools.doctor.finding import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    Index = tuple[Any, ...]
    Function = Callable[..., Tensor]

BLOCK = 1_000_003
"""Random numbers that are drawn for a tensor: a prime, so that no two rows of a longer tensor begin alike."""

INEXACT = 4
"""Factor over the tolerance up to which a kernel counts as inexact: torch's own layer norm on CPUs sums the gradients
of its weights in half precision, and is over the tolerance from a thousand tokens on."""

_EMPTY = torch.empty(0)
"""Gradient that a kernel leaves out; of no input's shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Call of a kernel, and the part of it that the oracle computes too.

    The gradient of the output is zero outside of that part: the gradients of whole weights are then those of the part.

    Attributes:
        inputs: tensors that get a gradient, on the host, in the dtypes of the training.
        constants: other arguments by name; tensors among them on the host.
        parts: name of an input, a constant or "output" -> index of its part; names that are not there: the whole.
        scales: name of an input, or "output" -> indices of its part whose entries are of like size, so that an error is
            compared with the largest of them; names that are not there: the whole.
        oracle: reference kernel in float64 on the host.
        sizes: of the call and of its part, for people.
        overwritten: inputs that the kernel may overwrite.
        main_grads: inputs with a `main_grad` of that dtype, to which the kernel may add the gradient (`LinearRequest`).
    """

    inputs: Mapping[str, Tensor]
    oracle: Function
    sizes: str
    constants: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Index] = field(default_factory=dict)
    scales: Mapping[str, Sequence[Index]] = field(default_factory=dict)
    overwritten: frozenset[str] = frozenset()
    main_grads: Mapping[str, torch.dtype] = field(default_factory=dict)

    def part(self, name: str, x: Any) -> Any:
        """Return the part of an argument that the oracle is given."""
        if name not in self.parts:
            return x
        return x[tuple(_placed(each, x.device) for each in self.parts[name])]


@dataclass(frozen=True, slots=True)
class Deviation:
    """Largest deviation of a kernel from its oracle.

    Attributes:
        name: of the tensor: "output", "gradient of query".
        error: as a part of the largest entry, of the tensor or of the entries of like size; inf where an entry is not
            finite or the shape differs.
        allowed: the tolerance of the dtype.
    """

    name: str
    error: float
    allowed: float

    @property
    def verdict(self) -> Verdict:
        """Right, less exact than other kernels, or wrong."""
        if self.error <= self.allowed:
            return Verdict.OK
        return Verdict.LOOK if self.error <= INEXACT * self.allowed else Verdict.WRONG

    def __str__(self) -> str:
        found = "not finite, or of another shape" if self.error == float("inf") else f"off by {self.error:.2g}"
        return f"{self.name} {found}, {self.allowed:.2g} allowed"


def random(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Return normal numbers on the host, of which `BLOCK` are drawn and repeated: a large tensor takes seconds else."""
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.Size(shape).numel())
    block = torch.randn(min(count, BLOCK), generator=generator).to(dtype)
    return block.repeat(-(-count // BLOCK))[:count].view(shape)


def deviations(trial: Trial, kernel: Function, device: torch.device) -> list[Deviation]:
    """Call the kernel on the device, forward and backward, and compare the part with the oracle.

    Returns:
        of the output and of the gradient of each input, in this order.
    """
    actual, grad_output = _called(trial, kernel, device)
    expected = _expected(trial, grad_output)
    dtype = next(iter(trial.inputs.values())).dtype
    return [
        Deviation(name, _error(trial, name.removeprefix("gradient of "), x, expected[name]), TOLERANCE[dtype])
        for name, x in actual.items()
    ]


def _called(trial: Trial, kernel: Function, device: torch.device) -> tuple[dict[str, Tensor], Tensor]:
    """Return output and gradients by name, and the gradient of the output on the host."""
    leaves: dict[str, Any] = {name: x.to(device, copy=True).requires_grad_() for name, x in trial.inputs.items()}
    given = {name: leaf.clone() if name in trial.overwritten else leaf for name, leaf in leaves.items()}
    for name, dtype in trial.main_grads.items():
        leaves[name].main_grad = torch.zeros_like(leaves[name], dtype=dtype)
        leaves[name].grad_added_to_main_grad = False
    output = kernel(**given, **{name: _placed(x, device) for name, x in trial.constants.items()})
    grad_output = torch.zeros(output.shape, dtype=output.dtype)
    place = trial.parts.get("output", (...,))
    grad_output[place] = random(*grad_output[place].shape, dtype=output.dtype, seed=7)
    kept = output.detach().clone()
    grads = torch.autograd.grad(output, list(leaves.values()), grad_output.to(device), allow_unused=True)
    found = {f"gradient of {name}": grad for name, grad in zip(leaves, grads, strict=True)}
    for name in trial.main_grads:
        if leaves[name].grad_added_to_main_grad:
            found[f"gradient of {name}"] = leaves[name].main_grad
    return {"output": kept} | {name: _EMPTY if grad is None else grad for name, grad in found.items()}, grad_output


def _expected(trial: Trial, grad_output: Tensor) -> dict[str, Tensor]:
    leaves = {name: trial.part(name, x).double().requires_grad_() for name, x in trial.inputs.items()}
    given = {name: leaf.clone() if name in trial.overwritten else leaf for name, leaf in leaves.items()}
    output = trial.oracle(**given, **{name: trial.part(name, x) for name, x in trial.constants.items()})
    grads = torch.autograd.grad(output, list(leaves.values()), trial.part("output", grad_output).double())
    names = (f"gradient of {name}" for name in leaves)
    return {"output": output.detach(), **dict(zip(names, grads, strict=True))}


def _placed(x: Any, device: torch.device) -> Any:
    return x.to(device) if isinstance(x, torch.Tensor) else x


def _error(trial: Trial, place: str, whole: Tensor, expected: Tensor) -> float:
    """Return the largest error as a part of the largest entry expected; entries outside of the part must be finite."""
    if whole is _EMPTY or not bool(whole.isfinite().all()):
        return float("inf")
    part = trial.part(place, whole)
    if part.shape != expected.shape:
        return float("inf")
    errors = (part.detach().cpu().double() - expected).abs()
    found = [_relative(errors[scale], expected[scale]) for scale in trial.scales.get(place, ((...,),))]
    return torch.tensor(found, dtype=torch.float64).max().item()  # unlike Python's, nan wins


def _relative(errors: Tensor, expected: Tensor) -> float:
    error: float = errors.max().item()
    largest: float = expected.abs().max().item()
    return error / largest if largest else error
