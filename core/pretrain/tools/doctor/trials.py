"""Trials: calls of the run's kernels at its shapes, as far as they fit, and their largest errors against float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from pretrain.conformance.compared_part import EVERYTHING, AttentionPart, TokenPart, mask_of_documents
from pretrain.conformance.comparison import adam_state, adam_step_in_float64, both_results, oracle, random
from pretrain.conformance.example_calls import Sizes, as_function, example_call, longer
from pretrain.conformance.tensor_error import INEXACT, TOLERANCE, relative_error
from pretrain.plugins.requests import AttentionRequest, GroupedLinearRequest, SoftmaxRequest
from pretrain.plugins.signatures import Documents
from pretrain.recipe.layout import linear_shapes
from pretrain.tools.doctor.finding import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from pretrain.conformance.compared_part import ComparedPart
    from pretrain.conformance.example_calls import ExampleCall
    from pretrain.plugins.requests import OptimizerRequest, Request
    from pretrain.plugins.signatures import OptimizerKernels
    from pretrain.recipe import Recipe

    Function = Callable[..., Tensor]
    Shape = tuple[int, int]  # inputs and outputs of a linear

SECONDS = 5.0  # time that a kernel's call, forward and backward, may take at the speed of the device's matmuls
ORACLE_ELEMENTS = 2**23  # entries of the largest tensor that the oracle makes: 64 MiB in float64, a second on one core
ORACLE_WEIGHTS = 2**26  # entries of the largest weight that it is given: 512 MiB
ORACLE_FLOPS = 5e10  # operations of the oracle's matmuls: a few seconds in float64 on a core of a server
SHARE = 0.25  # part of the free memory that a kernel's call may take
PATIENCE, LENIENCE = 4, 2
"""Factors by which one unit may be over: 20 s, less than after which a rank is silent; half of the free memory."""
OF_FLASH, STORED, OF_TOKEN = 12, 8, 12
"""Tensors that a call holds, forward and backward: attention's of the inputs' size, and of the scores' size where it
stores them; other operations' of the widest one. Assumed, with gradients and copies counted: it need not be exact."""
FEW = 128  # tokens with which a linear other than the largest one is tried: its shape is what matters
LARGEST = 2**22  # entries of the largest parameter that is tried: 16 MiB
SPREAD = 0.02  # size of the parameters: near that of a step, which would be lost in larger ones
ADAM: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
STEPS = 2


class TooLargeError(Exception):
    """A trial that is too large for this device; the text says by how much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapeLimits:
    """Limits of one trial."""

    flops: float  # operations that the device does in `SECONDS`
    memory: float  # bytes that the call may take on the device

    @classmethod
    def of(cls, speed: float, free: int, ranks: int) -> ShapeLimits:
        """Return the limits on a device with so many FLOP/s and free bytes, which so many ranks share."""
        return cls(flops=_rounded(SECONDS * speed), memory=_rounded(SHARE * free / ranks))

    def units(self, wanted: int, what: str, *, flops: float = 0.0, size: float = 0.0) -> int:
        """Return the number of units (sequences, tokens) that fit, at most what is wanted."""
        by_time = self.flops / flops if flops else wanted
        by_memory = self.memory / size if size else wanted
        found = int(min(wanted, by_time, by_memory))
        if found:
            return found
        if PATIENCE * by_time < 1:
            msg = f"{what} would take {SECONDS / by_time:.0f} s at the speed of the matmuls"
            raise TooLargeError(msg)
        if LENIENCE * by_memory < 1:
            msg = f"{what} would take about {size / 2**30:.1f} GiB, over {LENIENCE * SHARE:.0%} of the free memory"
            raise TooLargeError(msg)
        return 1


def _rounded(value: float) -> float:
    """Return the power of two below, so that ranks of like devices try the same sizes."""
    return 2.0 ** math.floor(math.log2(max(value, 1.0)))


@dataclass(frozen=True, slots=True)
class Deviation:
    """Largest error of a tensor against float64."""

    name: str  # "output", "gradient of query"
    error: float  # of the largest entry of like size; inf where an entry is not finite or the shape differs
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
    """Call of a kernel, and the part of it that is compared."""

    call: ExampleCall
    part: ComparedPart
    oracle: Callable[..., Tensor]  # the reference kernel in float64 for that part
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
    request: Request, recipe: Recipe, limits: ShapeLimits, *, stores_scores: bool = True, linear: Shape | None = None
) -> Trial:
    """Return the trial of a kernel, at the shapes of the run as far as they fit."""
    if isinstance(request, AttentionRequest | SoftmaxRequest):
        return _of_scores(request, recipe, limits, stores_scores=stores_scores)
    if isinstance(request, GroupedLinearRequest):
        return _of_rows(request, limits)
    return _of_tokens(request, recipe, limits, linear)


def _of_scores(
    request: AttentionRequest | SoftmaxRequest, recipe: Recipe, limits: ShapeLimits, *, stores_scores: bool
) -> Trial:
    wanted, heads, shown = recipe.train.micro_batch_size, request.heads, f"{request.heads} heads"
    if isinstance(request, AttentionRequest):
        length, keys, size = request.seq_length, request.most_keys, request.head_size
        stored = STORED * heads * length * keys if stores_scores else 0
        flops = 14.0 * heads * size * length * keys  # two matmuls forward, five backward
        held = 4.0 * (OF_FLASH * keys * heads * size + stored)
        batch = limits.units(wanted, "one sequence", flops=flops, size=held)
        call = example_call(replace(request, micro_batch_size=batch), length)
        call.constants["training"] = False
        shown += f" of {size}"
    else:
        length = request.keys
        batch = limits.units(wanted, "one sequence", size=4.0 * STORED * heads * request.queries * length)
        call = example_call(request, Sizes(tokens=length, batch=batch))
    part = AttentionPart.of(request, batch, ORACLE_ELEMENTS)
    kernel, cut = oracle(part.request_of_part), f" of {wanted}" if batch < wanted else ""
    sizes = f"s {length}, b {batch}{cut}, {shown}" + (f"; compared: {part}" if str(part) else "")
    return Trial(call=call, part=part, oracle=lambda **given: kernel(**part.with_mask(given)), sizes=sizes)


def _of_rows(request: GroupedLinearRequest, limits: ShapeLimits) -> Trial:
    hidden, columns = request.hidden_size, request.ffn_hidden_size * (1 + request.is_gated)
    if (entries := request.experts * hidden * columns) > ORACLE_WEIGHTS:
        msg = f"weights of {entries} entries, over {ORACLE_WEIGHTS}, would take too long on the host in float64"
        raise TooLargeError(msg)
    width, flops = max(hidden, columns), 6.0 * hidden * columns
    wanted = max(1, min(request.rows, ORACLE_ELEMENTS // width, int(ORACLE_FLOPS / flops)))
    rows = limits.units(wanted, "a row", flops=flops, size=4.0 * OF_TOKEN * width)
    return Trial(
        call=example_call(request, Sizes(tokens=rows, batch=1)),
        part=EVERYTHING,
        oracle=oracle(request, main_grad_dtype=None),
        sizes=f"{rows} rows of {request.rows}, {request.experts} experts, {hidden} to {columns}",
    )


def _of_tokens(request: Any, recipe: Recipe, limits: ShapeLimits, linear: Shape | None) -> Trial:
    operation, flops, model = request.operation, 0.0, recipe.model
    wanted, batch = recipe.own_seq_length, recipe.train.micro_batch_size
    rows, columns = linear or linear_shapes(recipe)[0]
    if operation in {"norm", "bias_dropout_add"}:
        width, shown = request.hidden_size, f"h {request.hidden_size}"
        is_split = recipe.parallel.sequence_parallel and not request.role  # heads are normed over the whole sequence
        wanted //= recipe.parallel.tensor_model_parallel_size if is_split else 1
    elif operation == "rotary":
        width, shown = request.heads * request.head_size, f"{request.heads} heads of {request.head_size}"
    elif operation == "activation":
        width = request.features * (2 if request.kind == "swiglu" else 1)
        shown = f"{request.kind} of {width}"
    elif operation == "moe_permute":
        width, shown = request.topk * request.hidden_size, f"h {request.hidden_size}, {request.topk} experts a token"
    elif operation == "router":
        width, shown = request.experts, f"{request.topk} of {request.experts} experts"
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
    asked = replace(request, micro_batch_size=batch) if operation == "cross_entropy" else request
    sizes = Sizes(
        tokens=length, batch=batch, linear=(rows, columns), has_bias=model.add_bias_linear and not request.role
    )
    call = example_call(longer(asked, length), sizes)
    if operation == "bias_dropout_add":
        call.constants["training"] = False
    cut, compared = f" of {wanted}" * (length < wanted), f", 1 token in {step} compared" * (step > 1)
    return Trial(
        call=call,
        part=TokenPart(step),
        oracle=as_function(operation, oracle(request, **({"main_grad_dtype": None} if operation == "linear" else {}))),
        sizes=f"s {length}{cut}, b {batch}{compared}, {shown}",
    )


def _step(count: int, limit: float) -> int:
    return max(1, -(-count // max(1, int(limit))))


def optimizer_deviations(
    request: OptimizerRequest, kernels: OptimizerKernels, shape: tuple[int, int], device: torch.device
) -> Iterator[Deviation]:
    """Step a weight and a bias with the recipe's form of Adam, and compare both and the norm of their gradients.

    Each step starts from the kernel's own state, which may be rounded; the state that it stores is compared too.
    """
    shapes = (max(1, min(shape[0], LARGEST // shape[1])), shape[1]), (shape[0],)
    starts = [random(*each, dtype=torch.float32, seed=seed) * SPREAD for seed, each in enumerate(shapes)]
    gradients = [[random(*each, dtype=torch.float32, seed=5 + step) for each in shapes] for step in range(STEPS)]
    parameters = [torch.nn.Parameter(start.to(device, copy=True)) for start in starts]
    if request.name not in {"adam", "adamw"}:
        msg = f"optimizer {request.name!r} has no float64 reference; adam and adamw have one"
        raise NotImplementedError(msg)
    is_decoupled = request.name == "adamw"
    adam = cast("Any", kernels.adam)  # an apex-shaped class: see `OptimizerKernels`
    stepping = adam(parameters, **ADAM, adam_w_mode=is_decoupled)
    names = "weight", "bias"
    dtypes = request.state_dtypes
    errors = dict.fromkeys((*names, *dtypes), 0.0)
    for step, of_step in enumerate(gradients, 1):
        expected = []
        for parameter, gradient in zip(parameters, of_step, strict=True):
            parameter.grad = gradient.to(device)
            before = (parameter.detach(), *adam_state(stepping, parameter, dtypes))
            start, mean, square = (each.cpu() for each in before)
            expected.append(
                adam_step_in_float64(start, mean, square, gradient, step=step, **ADAM, adam_w_mode=is_decoupled)
            )
        norm = kernels.gradient_norm([gradient.to(device) for gradient in of_step])
        stepping.step()
        for name, parameter, (exact, *states) in zip(names, parameters, expected, strict=True):
            errors[name] = max(errors[name], relative_error(parameter, exact))
            for each, exact_state in zip(dtypes, states, strict=True):
                kept = stepping.state[parameter].get(each)
                errors[each] = max(errors[each], relative_error(kept, exact_state))
    allowed = TOLERANCE[torch.float32]
    for name, error in errors.items():
        rounding = torch.finfo(dtypes.get(name, torch.float32)).eps / 2  # to nearest
        yield Deviation(f"{name} in {STEPS} steps", error, allowed + rounding)
    squares = torch.stack([gradient.double().square().sum() for gradient in gradients[-1]])
    yield Deviation("gradient norm", relative_error(norm, squares.sum().sqrt()), allowed)


DEVIATIONS = 6  # standard deviations by which a rate may be off: a right kernel is once in 500 million calls
COARSE = 1 / 128
"""Error of the rate of a right attention: flash-attn compares 8 random bits with it (dropout.h of its csrc)."""
VARIANCE = 0.25
"""Part by which the variance of an attention's dropout may be off besides: its weights and outputs are rounded."""
ROUNDED = 16  # factor by which dropout must vary an output more than rounding does, for its variance to be judged
SEEN = 0.5  # rounding of an output, as a part of one key's weight, up to which the loss of the key is seen in it
CERTAIN = 40  # dropped entries from which on two calls cannot drop the same ones by chance


def dropout_fault(trial: Trial, kernel: Function, device: torch.device, request: Request) -> str:
    """Return what is wrong with calls that drop entries; "" where nothing is, or the kernel drops none."""
    probability = getattr(request, "dropout", 0.0)
    if not probability:
        return ""
    call = trial.call.placed(lambda x: x.to(device))
    given: dict[str, Any] = {name: x.detach().requires_grad_() for name, x in call.inputs.items()}
    constants = {**call.constants, "training": True}
    output = kernel(**given, **constants)
    grads = torch.autograd.grad(output, list(given.values()), torch.ones_like(output))
    if not all(bool(x.isfinite().all()) for x in (output, *grads)):
        return f"not finite with dropout {probability}"
    del output, grads
    if isinstance(request, AttentionRequest):
        return _attention_fault(kernel, given, constants, probability, request)
    return _addition_fault(kernel, given, constants, probability)


def _addition_fault(kernel: Function, given: dict[str, Tensor], constants: dict[str, Any], probability: float) -> str:
    """Judge residual + dropout(x + bias) where x is 1 and all else 0: zeros are what was dropped."""
    alike = {name: torch.zeros_like(x) for name, x in given.items()}
    alike["x"] = torch.ones_like(given["x"]).requires_grad_()
    first, again = (kernel(**alike, **constants) for _ in range(2))
    (grad,) = torch.autograd.grad(first, [alike["x"]], torch.ones_like(first))
    dropped = first == 0
    rate, count = dropped.double().mean().item(), dropped.numel()
    if abs(rate - probability) > DEVIATIONS * (probability * (1 - probability) / count) ** 0.5:
        return f"{rate:.4f} of the entries are dropped, not {probability}"
    if not torch.equal(dropped, grad == 0):
        return "output and gradient are dropped at different entries"
    return _repeated(first, again, probability * count)


def _attention_fault(
    kernel: Function, given: dict[str, Tensor], constants: dict[str, Any], probability: float, request: AttentionRequest
) -> str:
    """Judge attention where queries are 0 and values 1: each of k visible keys has the weight 1/k or is dropped."""
    alike = given | {"query": torch.zeros_like(given["query"]), "value": torch.ones_like(given["value"])}
    length, batch, heads, size = given["query"].shape
    with torch.no_grad():
        first, again = (kernel(**alike, **constants) for _ in range(2))
    visible = _visible(constants["mask"], given["query"].shape, request)
    found = first.detach().cpu().view(length, batch, heads, size)[..., 0].double() - 1
    epsilon = torch.finfo(first.dtype).eps
    variance = probability / (1 - probability) / visible  # of a query's output, which is 1 on average
    shift = found.mean().item()
    if abs(shift) > DEVIATIONS * variance.sum().sqrt().item() / found.numel() + COARSE + 4 * epsilon:
        return f"with dropout {probability} the weights sum to {1 + shift:.3f} on average, not 1"
    clear = variance > ROUNDED * epsilon**2
    if clear.any():
        ratio = (found.square() / variance)[clear].mean().item()
        excess = (1 - 6 * probability * (1 - probability)) / (visible[clear] * probability * (1 - probability))
        spread = (2 + excess).clamp(min=0).sum().sqrt().item() / int(clear.sum())
        allowed = VARIANCE + COARSE / probability + DEVIATIONS * spread
        if abs(ratio - 1) > allowed:
            return (
                f"the weights' variance is {ratio:.2f} times that of dropout {probability}, 1 +- {allowed:.2f} allowed"
            )
    seen = visible[visible * epsilon < SEEN]
    return _repeated(first, again, probability * seen.sum().item())


def _visible(mask: Tensor | Documents | None, shape: torch.Size, request: AttentionRequest) -> Tensor:
    """Return the number of keys that each query of [s, b, n, d] sees, float64 [s, b, n] on the host."""
    length, batch, heads, _ = shape
    if isinstance(mask, Documents):
        mask = mask_of_documents(mask, batch, request.window)
    before = request.most_keys - length
    of_causal = torch.arange(before + 1, before + length + 1)[:, None, None]
    seen = of_causal if mask is None else (~mask).sum(-1).cpu().permute(2, 0, 1)
    return seen.expand(length, batch, heads).double().clamp(max=request.window or request.most_keys)


def _repeated(first: Tensor, again: Tensor, dropped: float) -> str:
    alike = dropped > CERTAIN and torch.equal(first, again)
    return "two calls drop the same entries" if alike else ""
