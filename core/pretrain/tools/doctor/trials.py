"""Trials: calls of the run's kernels at its shapes, as far as they fit, and their largest errors against float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from pretrain.conformance.compared_part import AttentionPart, TokenPart
from pretrain.conformance.comparison import adam_in_float64, both_results, oracle, random
from pretrain.conformance.example_calls import Sizes, example_call, longer
from pretrain.conformance.tensor_error import INEXACT, TOLERANCE, relative_error
from pretrain.plugins.requests import AttentionRequest, CrossEntropyRequest, SoftmaxRequest
from pretrain.tools.doctor.finding import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from pretrain.conformance.compared_part import ComparedPart
    from pretrain.conformance.example_calls import ExampleCall
    from pretrain.plugins.requests import OptimizerRequest, Request
    from pretrain.plugins.signatures import OptimizerKernels
    from pretrain.recipe import Recipe

SECONDS = 5.0
"""Time that a kernel's call, forward and backward, may take at the speed of the device's matmuls."""

ORACLE_ELEMENTS = 2**23
"""Entries of the largest tensor that the oracle makes: 64 MiB in float64, a second on one core."""

ORACLE_FLOPS = 5e10
"""Operations of the oracle's matmuls: a few seconds in float64 on a core of a server."""

SHARE = 0.25
"""Part of the free memory that a kernel's call may take."""

PATIENCE, LENIENCE = 4, 2
"""Factors by which one unit may be over: 20 s, less than after which a rank is silent; half of the free memory."""

OF_FLASH, STORED, OF_TOKEN = 12, 8, 12
"""Tensors that a call holds, forward and backward: attention's of the inputs' size, and of the scores' size where it
stores them; other operations' of the widest one. Assumed, with gradients and copies counted: it need not be exact."""

FEW = 128
"""Tokens with which a linear other than the largest one is tried: its shape is what matters."""

LARGEST = 2**22
"""Entries of the largest parameter that is tried: 16 MiB."""

SPREAD = 0.02
"""Size of the parameters: near that of a step, which would be lost in larger ones."""

ADAM: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
STEPS = 2


class TooLargeError(Exception):
    """Trial that cannot be made on this device; the text is for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapeLimits:
    """Limits of one trial.

    Attributes:
        flops: operations that the device does in `SECONDS`.
        memory: bytes that the call may take on the device.
    """

    flops: float
    memory: float

    @classmethod
    def of(cls, speed: float, free: int, ranks: int) -> ShapeLimits:
        """Return the limits on a device with so many FLOP/s and free bytes, which so many ranks share."""
        return cls(flops=_rounded(SECONDS * speed), memory=_rounded(SHARE * free / ranks))

    def units(self, wanted: int, what: str, *, flops: float = 0.0, size: float = 0.0) -> int:
        """Return the number of units (sequences, tokens) that fit, at most what is wanted.

        Args:
            wanted: those of the training.
            what: name of a unit.
            flops: of one unit, forward and backward.
            size: bytes of one unit.

        Raises:
            TooLargeError: not even one fits.
        """
        by_time = self.flops / flops if flops else wanted
        by_memory = self.memory / size if size else wanted
        found = int(min(wanted, by_time, by_memory))
        if found:
            return found
        if PATIENCE * by_time < 1:
            msg = f"{what} would take {SECONDS / by_time:.0f} s at the speed of the matmuls"
            raise TooLargeError(msg)
        if LENIENCE * by_memory < 1:
            msg = f"{what} would take about {size / 2**30:.1f} GiB; {LENIENCE * SHARE:.0%} of the free memory is less"
            raise TooLargeError(msg)
        return 1


def _rounded(value: float) -> float:
    """Return the power of two below, so that ranks of like devices try the same sizes."""
    return 2.0 ** math.floor(math.log2(max(value, 1.0)))


@dataclass(frozen=True, slots=True)
class Deviation:
    """Largest error of a tensor against float64.

    Attributes:
        name: "output", "gradient of query".
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Call of a kernel, and the part of it that is compared.

    Attributes:
        call: its arguments.
        part: of the call.
        oracle: the reference kernel in float64 for that part.
        sizes: of the call and of its part, for people.
    """

    call: ExampleCall
    part: ComparedPart
    oracle: Callable[..., Tensor]
    sizes: str

    def deviations(self, kernel: Callable[..., Tensor], device: torch.device) -> list[Deviation]:
        """Call the kernel on the device; return the errors of the output and of the gradient of each input."""
        call = self.call
        actual, expected = both_results(
            kernel,
            self.oracle,
            call.inputs,
            lambda x: x.to(device, copy=True),
            part=self.part,
            constants=call.constants,
            main_grads={} if call.main_grad_dtype is None else {"weight": call.main_grad_dtype},
            is_watched=False,
            is_guarded=False,
        )
        allowed = TOLERANCE[next(iter(call.inputs.values())).dtype]
        return [Deviation(name, self._error(name, actual.get(name), x), allowed) for name, x in expected.items()]

    def _error(self, name: str, whole: Tensor | None, expected: Tensor) -> float:
        """Return the largest error of the entries of like size; entries outside of the part must be finite."""
        place = name.removeprefix("gradient of ")
        if whole is None or not bool(whole.isfinite().all()):
            return math.inf
        part = self.part.narrow(place, whole).cpu()
        if part.shape != expected.shape:
            return math.inf
        return max(relative_error(part[scale], expected[scale]) for scale in self.part.scales(place))


def make_trial(
    request: Request,
    recipe: Recipe,
    limits: ShapeLimits,
    *,
    stores_scores: bool = True,
    linear: tuple[int, int] | None = None,
) -> Trial:
    """Return the trial of a kernel, at the shapes of the run as far as they fit.

    Args:
        request: of the kernel.
        recipe: of the training.
        limits: of the trial.
        stores_scores: whether an attention does.
        linear: inputs and outputs of a linear; None: those of the first matmul of the MLP. Others get few tokens.

    Raises:
        TooLargeError: nothing fits.
    """
    if isinstance(request, AttentionRequest | SoftmaxRequest):
        return _of_scores(request, recipe, limits, stores_scores=stores_scores)
    return _of_tokens(request, recipe, limits, linear)


def _of_scores(
    request: AttentionRequest | SoftmaxRequest, recipe: Recipe, limits: ShapeLimits, *, stores_scores: bool
) -> Trial:
    wanted, heads, shown = recipe.train.micro_batch_size, request.heads, f"{request.heads} heads"
    if isinstance(request, AttentionRequest):
        length, size = request.seq_length, request.head_size
        stored = STORED * heads * length**2 if stores_scores else 0
        flops = 14.0 * heads * size * length**2  # two matmuls forward, five backward
        batch = limits.units(
            wanted, "one sequence", flops=flops, size=4.0 * (OF_FLASH * length * heads * size + stored)
        )
        call = example_call(replace(request, micro_batch_size=batch), length)
        call.constants["training"] = False
        shown += f" of {size}"
    else:
        length = request.keys
        batch = limits.units(wanted, "one sequence", size=4.0 * STORED * heads * request.queries * length)
        call = example_call(request, Sizes(tokens=length, batch=batch))
    part = AttentionPart.of(request, batch, ORACLE_ELEMENTS)
    kernel, cut = oracle(part.request_of_part), f" of {wanted}" if batch < wanted else ""
    return Trial(
        call=call,
        part=part,
        oracle=lambda **given: kernel(**part.with_mask(given)),
        sizes=f"s {length}, b {batch}{cut}, {shown}" + (f"; compared: {part}" if str(part) else ""),
    )


def _of_tokens(request: Any, recipe: Recipe, limits: ShapeLimits, linear: tuple[int, int] | None) -> Trial:
    """Return the trial of a kernel that computes every token by itself."""
    operation, flops, model = request.operation, 0.0, recipe.model
    wanted, batch = model.seq_length, recipe.train.micro_batch_size
    rows, columns = linear or linear_shapes(recipe)[0]
    if operation in {"norm", "bias_dropout_add"}:
        width, shown = request.hidden_size, f"h {request.hidden_size}"
        wanted //= recipe.parallel.tensor_model_parallel_size if recipe.parallel.sequence_parallel else 1
    elif operation == "rotary":
        width, shown = request.heads * request.head_size, f"{request.heads} heads of {request.head_size}"
    elif operation == "activation":
        width = request.features * (2 if request.kind == "swiglu" else 1)
        shown = f"{request.kind} of {width}"
    elif operation == "cross_entropy":
        width, shown = request.padded_vocab_size, f"{request.padded_vocab_size} columns"
    else:
        width, shown, flops = max(rows, columns), f"{rows} to {columns}", 6.0 * rows * columns
        limits = replace(limits, flops=min(limits.flops, FEW * flops)) if linear is not None else limits
    tensors = OF_TOKEN / 2 if operation == "cross_entropy" else OF_TOKEN
    found = limits.units(wanted * batch, "a token", flops=flops, size=4.0 * tensors * width)
    length = max(1, min(wanted, found // batch))
    step = max(_step(length * batch * width, ORACLE_ELEMENTS), _step(int(length * batch * flops), ORACLE_FLOPS))
    step = min(step, length)
    call = _token_call(
        request, Sizes(tokens=length, batch=batch, linear=(rows, columns), has_bias=model.add_bias_linear)
    )
    cut, compared = f" of {wanted}" * (length < wanted), f", 1 token in {step} compared" * (step > 1)
    return Trial(
        call=call,
        part=TokenPart(step),
        oracle=oracle(request, **({"main_grad_dtype": None} if operation == "linear" else {})),
        sizes=f"s {length}{cut}, b {batch}{compared}, {shown}",
    )


def _token_call(request: Request, sizes: Sizes) -> ExampleCall:
    """Return a call of so many tokens, which drops nothing."""
    if isinstance(request, CrossEntropyRequest):
        request = replace(request, micro_batch_size=sizes.batch)
    call = example_call(longer(request, sizes.tokens), sizes)
    if request.operation == "bias_dropout_add":
        call.constants["training"] = False
    return call


def _step(count: int, limit: float) -> int:
    """Return the smallest step by which `count` entries become at most `limit`."""
    return max(1, -(-count // max(1, int(limit))))


def linear_shapes(recipe: Recipe) -> list[tuple[int, int]]:
    """Return inputs and outputs of a rank's linears, each pair once: into the MLP first, then out, QKV, projection."""
    model, tensor = recipe.model, recipe.parallel.tensor_model_parallel_size
    hidden, ffn = model.hidden_size, model.ffn_hidden_size // tensor
    heads = model.num_attention_heads * model.head_size // tensor
    groups = model.num_query_groups * model.head_size // tensor
    into = ffn * (2 if model.activation == "swiglu" else 1)
    return list(dict.fromkeys([(hidden, into), (ffn, hidden), (hidden, heads + 2 * groups), (heads, hidden)]))


def optimizer_deviations(
    request: OptimizerRequest, kernels: OptimizerKernels, shape: tuple[int, int], device: torch.device
) -> Iterator[Deviation]:
    """Step a weight and a bias with the recipe's form of Adam, and compare both and the norm of their gradients.

    Args:
        request: of the kernels.
        kernels: those that the training takes.
        shape: of a weight of the model; cut to `LARGEST` entries.
        device: of this rank.
    """
    shapes = (max(1, min(shape[0], LARGEST // shape[1])), shape[1]), (shape[0],)
    starts = [random(*each, dtype=torch.float32, seed=seed) * SPREAD for seed, each in enumerate(shapes)]
    gradients = [[random(*each, dtype=torch.float32, seed=5 + step) for each in shapes] for step in range(STEPS)]
    parameters = [torch.nn.Parameter(start.to(device, copy=True)) for start in starts]
    match request.name:
        case "adamw":
            is_decoupled = True
        case "adam":
            is_decoupled = False
        case _:
            msg = f"optimizer {request.name!r} has no reference in float64; adam and adamw have"
            raise NotImplementedError(msg)
    adam = cast("Any", kernels.adam)  # an apex-shaped class: see `OptimizerKernels`
    stepping = adam(parameters, **ADAM, adam_w_mode=is_decoupled)
    for of_step in gradients:
        for parameter, gradient in zip(parameters, of_step, strict=True):
            parameter.grad = gradient.to(device)
        norm = kernels.gradient_norm([gradient.to(device) for gradient in of_step])
        stepping.step()
    allowed = TOLERANCE[torch.float32]
    for number, name in enumerate(("weight", "bias")):
        given = (of_step[number] for of_step in gradients)
        expected = adam_in_float64(starts[number], given, **ADAM, adam_w_mode=is_decoupled)
        yield Deviation(f"{name} after {STEPS} steps", relative_error(parameters[number], expected), allowed)
    squares = torch.stack([gradient.double().square().sum() for gradient in gradients[-1]])
    yield Deviation("gradient norm", relative_error(norm, squares.sum().sqrt()), allowed)
