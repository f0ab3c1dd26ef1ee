"""Compares a kernel with the reference kernel in float64; the kit, `pretrain doctor` and `pretrain align` use it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.compared_part import EVERYTHING
from pretrain.conformance.synchronization import NoSynchronization
from pretrain.plugins.host import discovery
from pretrain.plugins.host.importing import load_plugin
from pretrain.plugins.offer import Decline, Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from pretrain.conformance.compared_part import ComparedPart
    from pretrain.plugins.requests import Request

    Function = Callable[..., Tensor]

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-5, torch.float16: 2**-8}
"""The largest error of an entry that is allowed, as a part of the largest entry of the expected tensor.

fp16 and bf16: four units in the last place (2^-7 for bf16, 2^-10 for fp16). A kernel rounds its result, and, if it is
made of two matmuls, the values between them, forward and again backward. Kernel and reference have the same inputs.
fp32: 84 units (2^-23). Kernels sum a few hundred terms in different orders.
fp64: the same, for kernels that support it.

Relative to the largest entry, not to each one: a difference of large terms has their error.
"""

INEXACT = 4
"""Factor over the tolerance, or over the reference kernel's error in the same dtype, up to which a kernel is inexact,
not wrong: some sum in their own dtype, as torch's layer norm on CPUs sums the gradients of its weights."""

WHOLE = {**TOLERANCE, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Least error of a whole tensor that is explained: two roundings to 16 bits, or sums in another order."""

ROWS = 4
"""Factor for the worst of many rows."""

MANY = 128
"""Entries in whose mean error rounding averages out to less than half of `WHOLE`, also in the worst of many slices."""

OVERWRITABLE = frozenset({"logits"})
"""Inputs that a kernel may overwrite: those of `CrossEntropyFn` only, by its signature."""

BLOCK = 1_000_003
"""Random numbers that are drawn for a tensor: a prime, so that no two rows of a longer tensor begin alike."""


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return normal numbers on the CPU, rounded to the dtype; the same for the same seed and shape.

    `BLOCK` are drawn, and repeated in a larger tensor, which would take seconds.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + sum(shape))
    count = math.prod(shape)
    block = torch.randn(min(count, BLOCK), generator=generator).to(dtype)
    return block.repeat(-(-count // BLOCK))[:count].view(shape) if count else block.view(shape)


def strided(x: Tensor) -> Tensor:
    """Return the same values with the strides of a transposed tensor: no dimension but the first is dense."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def oracle(request: Request, dtype: torch.dtype = torch.float64, /, **changed: Any) -> Any:
    """Return the reference kernel for a request on the CPU, in float64 or another dtype, with fields changed."""
    changed |= {"device_type": "cpu", "dtype": dtype}
    if hasattr(request, "weight_dtype"):
        changed["weight_dtype"] = dtype
    hooks = load_plugin(discovery.REFERENCE).hooks
    answer = getattr(hooks, f"pretrain_{request.operation}")(replace(request, **changed))
    answers: Sequence[Offer | Decline] = [answer] if isinstance(answer, Offer | Decline) else answer
    return next(answer for answer in answers if isinstance(answer, Offer)).build({})


def forward_backward(
    function: Function,
    inputs: Mapping[str, Tensor],
    place: Callable[[Tensor], Tensor],
    grad_output: Tensor | None = None,
    *,
    constants: Mapping[str, Any] | None = None,
    main_grads: Mapping[str, torch.dtype] | None = None,
    part: ComparedPart = EVERYTHING,
    is_watched: bool = True,
    is_guarded: bool = True,
) -> dict[str, Tensor]:
    """Return the output and the gradient of every input that gets one, for one gradient of the output.

    Args:
        function: called with the inputs and the constants by name.
        inputs: gradients are computed for all of them; without any, the output alone.
        place: puts a tensor onto the device, with the strides that it is to have there.
        grad_output: random where None, and zero outside of the part: gradients of whole weights are then the part's.
        constants: arguments without a gradient, where they are to be.
        main_grads: inputs with a `main_grad` of that dtype, to which the kernel may add the gradient (`LinearRequest`).
        part: of the output, for which a random gradient is made.
        is_watched: whether it is an error to make the host wait. The watch intercepts torch.distributed's calls, which
            fails with a process group that is written in Python.
        is_guarded: whether it is an error to overwrite an input; it takes copies.

    Raises:
        AssertionError: the function overwrote an input, or the gradient of its output, or made the host wait.
    """
    leaves: dict[str, Any] = {name: place(x).detach().requires_grad_() for name, x in inputs.items()}
    for name, dtype in (main_grads or {}).items():
        leaves[name].main_grad = torch.zeros_like(leaves[name], dtype=dtype)
        leaves[name].grad_added_to_main_grad = False
    copied = {name: (is_guarded and name not in (main_grads or ())) or name in OVERWRITABLE for name in leaves}
    given = {name: leaf.clone() if copied[name] else leaf for name, leaf in leaves.items()}
    watch = NoSynchronization if is_watched else nullcontext
    with torch.enable_grad(), watch():
        output = function(**given, **(constants or {}))
    kept = output.detach().clone()
    if not output.requires_grad:
        return {"output": kept}
    if grad_output is None:
        grad_output = part.widen(output, random(*part.narrow("output", kept).shape, dtype=output.dtype, seed=7))
    placed = place(grad_output).to(output.dtype)
    with watch():
        grads = torch.autograd.grad(output, list(leaves.values()), placed, allow_unused=True)
    if is_guarded:
        _assert_not_overwritten(given, leaves)
        _assert_not_overwritten({"gradient of the output": placed}, {"gradient of the output": place(grad_output)})
    found = {name: leaf.main_grad for name, leaf in leaves.items() if getattr(leaf, "grad_added_to_main_grad", False)}
    found = {name: grad for name, grad in zip(leaves, grads, strict=True) if grad is not None} | found
    return {"output": kept} | {f"gradient of {name}": found[name] for name in leaves if name in found}


def _assert_not_overwritten(given: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    written = [name for name, x in given.items() if name not in OVERWRITABLE and not _is_same(x, before[name])]
    assert not written, f"overwritten by the kernel: {', '.join(written)}; only logits may be"


def _is_same(x: Tensor, before: Tensor) -> bool:
    return torch.allclose(x, before.to(x.dtype), rtol=0, atol=0, equal_nan=True)


def largest_error(actual: Tensor | None, expected: Tensor) -> tuple[float, float]:
    """Return the largest error of an entry, and the largest entry expected (fp64, on the CPU).

    The error is infinite for a tensor that is missing, of another shape, or not finite.
    """
    largest = expected.abs().max().item() if expected.numel() else 0.0
    if actual is None or actual.shape != expected.shape or not bool(actual.isfinite().all()):
        return math.inf, largest
    errors = (actual.detach().cpu().double() - expected.double()).abs()
    return errors.max().item() if expected.numel() else 0.0, largest


def relative_error(actual: Tensor | None, expected: Tensor) -> float:
    """Return the largest error of an entry as a part of the largest entry expected."""
    return _share(*largest_error(actual, expected))


def _share(error: float, whole: float) -> float:
    return error / whole if whole else error


def assert_near(actual: Tensor | None, expected: Tensor, dtype: torch.dtype, what: str, *, floor: float = 0.0) -> None:
    """Fail unless every entry is finite and within the tolerance of the dtype.

    Args:
        actual: on any device; None: a gradient that is missing.
        expected: fp64 on the CPU.
        dtype: of the kernel's inputs.
        what: name in the message.
        floor: lower limit of the largest entry, as entries may be differences of terms of this size.
    """
    assert actual is not None, f"{what}: there is none"
    assert actual.shape == expected.shape, f"{what}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    error, largest = largest_error(actual, expected)
    assert math.isfinite(error), f"{what}: {int((~actual.isfinite()).sum())} entries are not finite"
    allowed = TOLERANCE[dtype] * max(largest, floor)
    assert error <= allowed, f"{what}: error {error:.3g}, allowed {allowed:.3g} ({dtype}, largest entry {largest:.3g})"


def both_results(
    kernel: Function,
    oracle: Function,
    inputs: Mapping[str, Tensor],
    place: Callable[[Tensor], Tensor],
    *,
    part: ComparedPart = EVERYTHING,
    constants: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what a kernel gives, and of the part what its oracle gives in float64: output and gradients by name.

    Args:
        kernel: called with inputs and constants by name.
        oracle: called with the part of them, in fp64 on the CPU.
        inputs: on the CPU in the kernel's dtype, all with a gradient.
        place: puts a tensor onto the kernel's device.
        part: that the oracle computes too.
        constants: other arguments, tensors among them on the CPU.
        options: of `forward_backward` for the kernel.
    """
    given = dict(constants or {})
    placed = {name: place(x) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    actual = forward_backward(kernel, inputs, place, constants=placed, part=part, **options)
    output = actual["output"]
    grad_output = random(*part.narrow("output", output).shape, dtype=output.dtype, seed=7)
    expected = forward_backward(
        oracle,
        {name: part.narrow(name, x) for name, x in inputs.items()},
        torch.Tensor.double,
        grad_output,
        constants={name: part.narrow(name, x) for name, x in given.items()},
        is_watched=False,
        is_guarded=False,
    )
    return actual, expected


def assert_agrees(
    kernel: Function,
    oracle: Function,
    inputs: Mapping[str, Tensor],
    device: torch.device,
    *,
    is_strided: bool = False,
    output_dtype: torch.dtype | None = None,
    floor: float = 0.0,
) -> dict[str, Tensor]:
    """Fail unless kernel and oracle agree for the inputs.

    Args:
        kernel: called with the inputs by name, on the device.
        oracle: called with the inputs by name, in fp64 on the CPU.
        inputs: on the CPU in the kernel's dtype, all with a gradient. The first decides the tolerance.
        device: where the kernel runs.
        is_strided: inputs and the gradient of the output are not contiguous.
        output_dtype: dtype of the output; that of the first input by default.
        floor: see `assert_near`.

    Returns:
        The kernel's output and gradients.
    """
    first = next(iter(inputs.values()))

    def place(x: Tensor) -> Tensor:
        return (strided(x) if is_strided else x).to(device)

    actual, expected = both_results(kernel, oracle, inputs, place)
    output = actual["output"]
    assert output.dtype == (output_dtype or first.dtype), f"output is {output.dtype}"
    assert output.device.type == device.type, f"output is on {output.device}"
    for name, value in expected.items():
        assert_near(actual.get(name), value, first.dtype, name, floor=floor)
    for name, x in inputs.items():
        grad = actual[f"gradient of {name}"]
        assert grad.dtype == x.dtype, f"gradient of {name} is {grad.dtype}"
    return actual


def assert_repeats(
    function: Function,
    oracle: Function,
    inputs: Mapping[str, Tensor],
    device: torch.device,
    *,
    output_dtype: torch.dtype | None = None,
    floor: float = 0.0,
) -> None:
    """Fail unless two calls give the same bits, forward and backward, under torch's deterministic algorithms.

    A deterministic training enables them too, and kernels that call torch's may rely on it. Values are compared with
    the oracle's as well: a kernel that takes only deterministic requests is tested only here.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        first = assert_agrees(function, oracle, inputs, device, output_dtype=output_dtype, floor=floor)
        second = forward_backward(function, inputs, lambda x: x.to(device))
    finally:
        torch.use_deterministic_algorithms(before)
    different = [name for name, value in first.items() if not torch.equal(value, second[name])]
    assert not different, f"two calls differ in {', '.join(different)}, though the request is deterministic"


@dataclass(frozen=True, slots=True)
class TensorError:
    """Error of a tensor; infinite for a missing one, another shape, or an inf or nan.

    Attributes:
        entry: largest error of an entry, as a part of the largest entry expected.
        whole: Euclidean norm of the error, as a part of that of the tensor expected.
        row: the same of the worst row (the last dimension), as a part of its norm or, if that is larger, the median
            row's: a few rows may be so much larger that they are all of the tensor's norm. 0 for vectors.
        scale: largest factor that a slice is too large or small by: of one head, position, sample or feature. In it
            rounding averages out, so that it tells a mistake from rounding below one unit in the last place.
    """

    entry: float
    whole: float
    row: float = 0.0
    scale: float = 0.0

    @classmethod
    def of(cls, actual: Tensor | None, expected: Tensor) -> TensorError:
        """Measure a tensor against the expected one."""
        entry = relative_error(actual, expected)
        if actual is None or not math.isfinite(entry):
            return cls(math.inf, math.inf)
        if not expected.numel():
            return cls(0.0, 0.0)
        exact = expected.double()
        error = actual.double() - exact
        whole = _share(error.norm().item(), exact.norm().item())
        return cls(entry=entry, whole=whole, row=_worst_row(error, exact), scale=_worst_scale(error, exact))

    @property
    def is_finite(self) -> bool:
        """True if the error is a number."""
        return math.isfinite(self.entry)

    def is_small(self, dtype: torch.dtype) -> bool:
        """Say whether no more need be known to explain the error."""
        whole = WHOLE[dtype]
        is_small = self.entry <= TOLERANCE[dtype] and self.whole <= whole
        return is_small and self.row <= ROWS * whole and self.scale <= whole / 2

    def judged(self, dtype: torch.dtype, made: TensorError | None) -> list[float]:
        """Return the error and what is explained of it: of the whole tensor, or of a part if only that is too large.

        Args:
            dtype: of the kernel's inputs.
            made: error that the reference kernel makes in this dtype; None if it is not needed.
        """
        usual = made if made is not None and made.is_finite else TensorError(0.0, 0.0)
        whole = WHOLE[dtype]
        judged = [
            [self.whole, max(whole, INEXACT * usual.whole)],
            [self.row, max(ROWS * whole, INEXACT * usual.row)],
            # Where the reference kernel is inexact too, less of its error averages out.
            [self.scale, max(whole / 2, INEXACT * usual.scale, usual.whole)],
            [self.entry, INEXACT * max(TOLERANCE[dtype], usual.entry)],
        ]
        return next(([error, explained] for error, explained in judged if not error <= explained), judged[0])


def _worst_row(error: Tensor, exact: Tensor) -> float:
    if exact.dim() < 2:
        return 0.0
    norms = exact.norm(dim=-1)
    return float((error.norm(dim=-1) / norms.clamp(min=_median(norms))).max()) if bool(norms.any()) else 0.0


def _worst_scale(error: Tensor, exact: Tensor) -> float:
    """Return the largest <error, exact> / <exact, exact> of a slice along any dimension, less in slices of few entries.

    Rounding of N equal entries leaves 1 / sqrt(N) of it; where they are not equal, N is <e, e>^2 / <e^2, e^2>.
    """
    if exact.dim() < 2 or not bool(exact.any()):
        return 0.0
    squares = exact.square()
    terms = error * exact, squares, squares.square()
    worst = 0.0
    for dim in range(exact.dim()):
        product, square, fourth = (x.sum([each for each in range(x.dim()) if each != dim]) for x in terms)
        size = square.clamp(min=_median(square))
        few = (MANY * fourth).sqrt() / size
        worst = max(worst, float((product.abs() / size / few.clamp(min=1)).max()))
    return worst


def _median(sizes: Tensor) -> Tensor:
    """Return the median of those that are not zero."""
    return sizes[sizes > 0].median()
