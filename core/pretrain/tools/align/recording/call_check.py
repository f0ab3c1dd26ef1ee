"""Check of one call of a kernel against the reference kernel in float64, on the tensors that the call was given."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pretrain.conformance.compared_part import EVERYTHING, AttentionPart
from pretrain.conformance.comparison import forward_backward, oracle
from pretrain.conformance.example_calls import as_function
from pretrain.conformance.tensor_error import TOLERANCE, TensorError
from pretrain.plugins.constant_weights import constant_weights
from pretrain.plugins.requests import AttentionRequest, SoftmaxRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import Tensor

    from pretrain.conformance.compared_part import ComparedPart
    from pretrain.plugins.requests import Request
    from pretrain.tools.align.recording.folder import Visit

MOST_SCORES = 1 << 26  # scores that are checked: half a GiB in float64, of which the host has several at a time
_DIVIDED: Mapping[str, Mapping[str, int]] = {
    "linear": {"weight": 0, "bias": 0, "output": -1},
    "cross_entropy": {"logits": -1},
}
"""Operation -> dimension along which a tensor is divided among the ranks of the group that its call is given."""


def is_checked(request: Request, visit: Visit) -> bool:
    """Say whether a call is checked: of the first micro-batch of a step, since others take the same way."""
    return visit.micro_batch == 0 and request.dtype in TOLERANCE


class CallCheck:
    """Tensors that one call was given and returned, on the host."""

    def __init__(self, request: Request, arguments: Mapping[str, Any]) -> None:
        group = arguments.get("group")
        self._group: dist.ProcessGroup | None = group if group is not None and group.size() > 1 else None
        self._request = request
        self._part: ComparedPart = EVERYTHING
        if isinstance(request, AttentionRequest | SoftmaxRequest):
            first = next(x for x in arguments.values() if isinstance(x, torch.Tensor))
            batch = first.shape[0 if isinstance(request, SoftmaxRequest) else 1]
            self._part = part = AttentionPart.of(request, batch, MOST_SCORES, all_queries=True)
            self._request = part.request_of_part
        self._divided = dict(_DIVIDED.get(request.operation, {})) if self._group else {}
        if self._group and getattr(request, "sequence_parallel", False):
            self._divided["x"] = 0
        self._needs = {name for name, x in arguments.items() if isinstance(x, torch.Tensor) and x.requires_grad}
        self._given = {
            name: self._whole(name, x) if isinstance(x, torch.Tensor) else self._part.narrow(name, x)
            for name, x in arguments.items()
            if name != "group"
        }
        self._output: Tensor | None = None
        self._output_gradient: Tensor | None = None

    def output(self, output: Tensor) -> None:
        """Take what the kernel returned."""
        self._output = self._part.narrow("output", output.detach()).to("cpu", copy=True)

    def output_gradient(self, gradient: Tensor) -> None:
        """Take the gradient that the kernel's backward pass is given."""
        self._output_gradient = self._whole("output", gradient)

    def errors(self, gradients: Mapping[str, Tensor | None]) -> dict[str, list[float]]:
        """Return the error and the explained one, by name: "output" and "gradient of INPUT"."""
        # An input that gets no gradient, of which the reference kernel has one, is infinitely wrong. What overflows in
        # the reference kernel as well, such as gradients of a loss scale that is too large, is left out.
        actual = {"output": self._output} | {
            f"gradient of {name}": None if x is None else self._part.narrow(name, x.detach()).to("cpu")
            for name, x in gradients.items()
        }
        dtype, judged = self._request.dtype, _judged_as(self._request)
        with constant_weights(micro_batches=1):  # the step's would keep each copy of a weight that is made here
            return self._judged(dtype, judged, actual, gradients)

    def _judged(
        self, dtype: torch.dtype, judged: torch.dtype, actual: Mapping[str, Tensor | None], gradients: Collection[str]
    ) -> dict[str, list[float]]:
        exact = self._computed(torch.float64, gradients)
        errors = {name: self._error(name, actual[name], x) for name, x in exact.items()}
        if all(error.is_small(judged) for error in errors.values()):
            return {name: error.judged(judged, None) for name, error in errors.items()}
        made = self._computed(dtype, gradients)
        usual = {name: self._error(name, made.get(name), x) for name, x in exact.items()}
        return {
            name: error.judged(judged, usual[name])
            for name, error in errors.items()
            if error.is_finite or usual[name].is_finite
        }

    def _error(self, name: str, actual: Tensor | None, exact: Tensor) -> TensorError:
        """Return the error; of an attention's output [s, b, heads * size] each head has one."""
        if name == "output" and isinstance(self._request, AttentionRequest):
            shape = (*exact.shape[:-1], self._request.heads, -1)
            actual = actual.reshape(shape) if actual is not None and actual.shape == exact.shape else None
            exact = exact.reshape(shape)
        return TensorError.of(actual, exact)

    def _computed(self, dtype: torch.dtype, names: Collection[str]) -> dict[str, Tensor]:
        """Return this rank's part of the output and of these inputs' gradients, where the reference kernel has any."""
        given = {
            name: x.to(dtype, copy=name == "logits")  # which the reference kernel may overwrite too
            if isinstance(x, torch.Tensor) and x.is_floating_point() and name not in {"cos", "sin"}
            else x
            for name, x in self._given.items()
        }
        inputs = {name: given.pop(name) for name in names if name in self._needs}
        computed = forward_backward(
            _reference(self._request, dtype),
            inputs,
            lambda x: x,
            self._output_gradient,  # without one, which inputs have a gradient is asked alone
            constants=given,
            is_watched=False,
            is_guarded=False,
        )
        if self._group is not None:
            for name, x in computed.items():
                if (place := name.removeprefix("gradient of ")) in self._divided:  # this rank's part
                    computed[name] = x.chunk(self._group.size(), self._divided[place])[self._group.rank()]
        return computed

    def _whole(self, name: str, x: Tensor) -> Tensor:
        """Return a copy on the host, of all parts where ranks of the call's group have one each; collective then."""
        x = self._part.narrow(name, x.detach())
        if name not in self._divided or self._group is None:
            return x.to("cpu", copy=True)
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self._group.size())]
        dist.all_gather(parts, x.contiguous(), group=self._group)
        return torch.cat([part.cpu() for part in parts], dim=self._divided[name])


def _judged_as(request: Request) -> torch.dtype:
    """Return the dtype by which a call's errors are judged."""
    # Operands in fp8 are the reference's bit for bit, but matrix units keep 14 bits of their sums, as the conformance
    # kit allows (pretrain.conformance.kernels.quantization): fp16's 2^-10. That also covers groups which end at a
    # rank's part here and not in the whole tensor: other scales matter to entries 2^-14 smaller than the largest.
    is_quantized = bool(getattr(request, "quantization", ""))
    return torch.float16 if is_quantized and request.dtype == torch.float32 else request.dtype


@cache
def _reference(request: Request, dtype: torch.dtype) -> Any:
    whole = {"tensor_parallel_size": 1, "sequence_parallel": False, "main_grad_dtype": None}
    known = {field.name for field in fields(request)}
    kernel = oracle(request, dtype, **{name: value for name, value in whole.items() if name in known})
    return as_function(request.operation, kernel) if request.operation == "router" else kernel
