"""Compares a kernel with the reference kernel in float64; the kit, `pretrain doctor` and `pretrain align` use it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.conformance.compared_part import EVERYTHING
from pretrain.conformance.tensor_error import assert_near
from pretrain.plugins.host import discovery
from pretrain.plugins.host.discovery import load_plugin
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.signatures import Documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from pretrain.conformance.compared_part import ComparedPart
    from pretrain.plugins.requests import Request

    Function = Callable[..., Tensor]

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


def adam_in_float64(
    start: Tensor,
    gradients: Iterable[Tensor],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    adam_w_mode: bool,
) -> Tensor:
    """Return a parameter after a step for each gradient, by the arguments that the kernel's class has.

    Kingma and Ba 2015 (arXiv 1412.6980), algorithm 1; decay as Loshchilov and Hutter 2019 (arXiv 1711.05101).
    """
    parameter = start.double()
    mean, square = torch.zeros_like(parameter), torch.zeros_like(parameter)
    settings: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    for step, gradient in enumerate(gradients, 1):
        parameter, mean, square = adam_step_in_float64(
            parameter, mean, square, gradient, step=step, **settings, adam_w_mode=adam_w_mode
        )
    return parameter


def adam_state(adam: Any, parameter: Tensor, names: Iterable[str]) -> list[Tensor]:
    """Return these states that an apex-shaped Adam keeps of a parameter; zeros before the first step."""
    state = adam.state[parameter]
    return [state.get(name, torch.zeros_like(parameter)).detach() for name in names]


def adam_step_in_float64(
    parameter: Tensor,
    mean: Tensor,
    square: Tensor,
    gradient: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    adam_w_mode: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return parameter, exp_avg and exp_avg_sq after one step, counted from 1, in float64 from tensors of any dtype."""
    parameter, mean, square, gradient = (each.double() for each in (parameter, mean, square, gradient))
    if not adam_w_mode:
        gradient = gradient + weight_decay * parameter
    mean = betas[0] * mean + (1 - betas[0]) * gradient
    square = betas[1] * square + (1 - betas[1]) * gradient**2
    update = mean / (1 - betas[0] ** step) / ((square / (1 - betas[1] ** step)).sqrt() + eps)
    return parameter - lr * (update + (weight_decay * parameter if adam_w_mode else 0)), mean, square


aten = torch.ops.aten

WAITS = frozenset(
    {
        aten._local_scalar_dense,  # noqa: SLF001  .item(), float(), `if tensor:`
        aten.equal,
        aten.is_nonzero,
        aten.masked_select,
        aten.nonzero,
        aten.unique_dim,
        aten._unique2,  # noqa: SLF001
    }
)
"""Operators whose result, or its size, the host must know before it continues."""

INDEXED_WRITES = frozenset({aten.index_put, aten.index_put_})


class NoSynchronization(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode in which an operator that makes the host wait for the device raises AssertionError.

    It works on the CPU too, where nothing waits, so that a kernel is tested without a device. It sees torch's
    operators, forward and backward, but not the calls that a library makes itself.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch for every operator."""
        kwargs = kwargs or {}
        if func.overloadpacket in WAITS or _reads_back(func, args, kwargs) or _counts_a_mask(func, args):
            msg = f"{func} makes the host wait for the device; a kernel must not call .item() or branch on a value"
            raise AssertionError(msg)
        return func(*args, **kwargs)


def _reads_back(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Say whether a tensor of a device is copied to the host."""
    if func.overloadpacket is aten._to_copy:  # noqa: SLF001
        device = kwargs.get("device")
        return device is not None and torch.device(device).type == "cpu" and args[0].device.type != "cpu"
    return func.overloadpacket is aten.copy_ and args[0].device.type == "cpu" and args[1].device.type != "cpu"


def _counts_a_mask(func: Any, args: tuple[Any, ...]) -> bool:
    """Say whether a tensor is indexed by a mask, whose values decide how many entries are read or written."""
    if func.overloadpacket in INDEXED_WRITES and args[2].numel() == 1:
        return False  # torch then uses masked_fill
    reads_or_writes = func.overloadpacket is aten.index or func.overloadpacket in INDEXED_WRITES
    return reads_or_writes and any(x is not None and x.dtype is torch.bool for x in args[1])


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
    """Return the output and the gradient of every input that gets one, by name, for one gradient of the output.

    The function is called with `inputs`, which all get gradients, and `constants`, which are where they are to be;
    `place` puts an input onto the device, with its strides. A `grad_output` of None is random, and zero outside of the
    `part`. `main_grads` are the dtypes of the `main_grad` that inputs have, to which the kernel may add
    (`LinearRequest`). It is an AssertionError where the function overwrites an input or the gradient of its output
    (`is_guarded`; takes copies), or makes the host wait (`is_watched`; it intercepts torch.distributed's calls, which
    fails with a group in Python).
    """
    leaves: dict[str, Any] = {name: place(x).detach().requires_grad_() for name, x in inputs.items()}
    for name, dtype in (main_grads or {}).items():
        leaves[name].main_grad = torch.zeros_like(leaves[name], dtype=dtype)
        leaves[name].grad_added_to_main_grad = False
    copied = {name: (is_guarded and name not in (main_grads or ())) or name in OVERWRITABLE for name in leaves}
    watch = NoSynchronization if is_watched else nullcontext
    with torch.enable_grad():  # off inside of another backward pass, from which `align` calls this
        given = {name: leaf.clone() if copied[name] else leaf for name, leaf in leaves.items()}
        with watch():
            output = function(**given, **(constants or {}))
    kept = output.detach().clone()
    if not output.requires_grad:
        return {"output": kept}
    if grad_output is None:
        grad_output = part.widen(output, random(*part.narrow("output", kept).shape, dtype=output.dtype, seed=7))
    put = place(grad_output).to(output.dtype)
    with watch():
        grads = torch.autograd.grad(output, list(leaves.values()), put, allow_unused=True)
    if is_guarded:
        _assert_not_overwritten(given, leaves)
        _assert_not_overwritten({"gradient of the output": put}, {"gradient of the output": place(grad_output)})
    found = {name: leaf.main_grad for name, leaf in leaves.items() if getattr(leaf, "grad_added_to_main_grad", False)}
    found = {name: grad for name, grad in zip(leaves, grads, strict=True) if grad is not None} | found
    return {"output": kept} | {f"gradient of {name}": found[name] for name in leaves if name in found}


def _assert_not_overwritten(given: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    written = [
        name
        for name, x in given.items()
        if name not in OVERWRITABLE and not torch.allclose(x, before[name].to(x.dtype), rtol=0, atol=0, equal_nan=True)
    ]
    assert not written, f"the kernel overwrote {', '.join(written)}; it may overwrite only logits"


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

    Inputs are on the CPU in the kernel's dtype; `place` puts a tensor onto the kernel's device. The oracle is called
    with the part of inputs and constants, in fp64 on the CPU. Options are those of `forward_backward`, for the kernel.
    """
    given = dict(constants or {})
    there = {name: placed(x, place) for name, x in given.items()}
    actual = forward_backward(kernel, inputs, place, constants=there, part=part, **options)
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


def _on(device: torch.device, constants: Mapping[str, Any]) -> dict[str, Any]:
    return {name: placed(x, lambda tensor: tensor.to(device)) for name, x in constants.items()}


def placed(argument: Any, place: Callable[[Tensor], Tensor]) -> Any:
    """Return an argument of a kernel with its tensors put onto a device, or made fake ones."""
    if isinstance(argument, Documents):
        return argument.placed(place)
    return place(argument) if isinstance(argument, torch.Tensor) else argument


def assert_agrees(
    kernel: Function,
    oracle: Function,
    inputs: Mapping[str, Tensor],
    device: torch.device,
    *,
    constants: Mapping[str, Any] | None = None,
    is_strided: bool = False,
    output_dtype: torch.dtype | None = None,
    floor: float = 0.0,
    is_watched: bool = True,
) -> dict[str, Tensor]:
    """Fail unless kernel and oracle agree for the inputs, called by name; return the kernel's output and gradients.

    Inputs are on the CPU in the kernel's dtype, the first of which decides the tolerance and, by default, the output's
    dtype. With `is_strided` they and the gradient of the output are not contiguous. `constants`, on the CPU too, are
    other arguments, which get no gradient. `floor`: see `assert_near`; `is_watched`: `forward_backward`.
    """
    first, given = next(iter(inputs.values())), dict(constants or {})
    there = _on(device, given)

    def place(x: Tensor) -> Tensor:
        return (strided(x) if is_strided else x).to(device)

    functions = partial(kernel, **there), partial(oracle, **given)
    actual, expected = both_results(*functions, inputs, place, is_watched=is_watched)
    output = actual["output"]
    expected_dtype = output_dtype or first.dtype
    assert output.dtype == expected_dtype, f"output is {output.dtype}, expected {expected_dtype}"
    assert output.device.type == device.type, f"output is on {output.device}, expected {device}"
    for name, value in expected.items():
        assert_near(actual.get(name), value, first.dtype, name, floor=floor)
    for name, x in inputs.items():
        grad = actual[f"gradient of {name}"]
        assert grad.dtype == x.dtype, f"gradient of {name} is {grad.dtype}, expected {x.dtype}"
    return actual


def assert_repeats(
    function: Function,
    oracle: Function,
    inputs: Mapping[str, Tensor],
    device: torch.device,
    *,
    constants: Mapping[str, Any] | None = None,
    output_dtype: torch.dtype | None = None,
    floor: float = 0.0,
    is_watched: bool = True,
) -> None:
    """Fail unless two calls give the same bits, forward and backward, under torch's deterministic algorithms.

    A deterministic training enables them too, and kernels that call torch's may rely on it. Values are compared with
    the oracle's as well: a kernel that takes only deterministic requests is tested only here.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        options: dict[str, Any] = {"output_dtype": output_dtype, "floor": floor, "is_watched": is_watched}
        first = assert_agrees(function, oracle, inputs, device, constants=constants, **options)
        there = _on(device, constants or {})
        second = forward_backward(function, inputs, lambda x: x.to(device), constants=there, is_watched=is_watched)
    finally:
        torch.use_deterministic_algorithms(before)
    different = [name for name, value in first.items() if not torch.equal(value, second[name])]
    assert not different, f"two calls differ in {', '.join(different)}, though the request is deterministic"
