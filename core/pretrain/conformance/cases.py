"""Test cases, and the mark that gives them to a test; tiers of tests, the cheapest first.

No pytest here: `pretrain conformance --help` reads the tiers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from dataclasses import Field

    from pretrain.plugins.requests import Request

Test = TypeVar("Test", bound="Callable[..., None]")

DTYPE_NAMES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
ABBREVIATIONS = {
    "exp_avg_dtype": "exp_avg ",
    "exp_avg_sq_dtype": "exp_avg_sq ",
    "experts": "e",
    "ffn_hidden_size": "f",
    "main_grad_dtype": "into ",
    "head_size": "d",
    "heads": "n",
    "hidden_size": "h",
    "keys": "k",
    "kind": "",
    "mask": "",
    "micro_batch_size": "b",
    "name": "",
    "quantization": "fp8 ",
    "queries": "q",
    "query_groups": "g",
    "score_function": "",
    "seq_length": "s",
    "tensor_parallel_size": "t",
    "weight_dtype": "weights ",
}
UNLABELLED = frozenset({"device_type", "device_name", "dtype", "process_group", "shapes", "timeout_minutes"})


@dataclass(frozen=True, slots=True)
class Case:
    """Alternative requests; a kernel is tested with the first that it takes.

    The usual one comes first, then others for kernels that decline it. A costly case takes seconds on a CPU: there one
    candidate is enough, and on a device each is a case of its own.
    """

    candidates: tuple[Request, ...]
    is_costly: bool = False

    def on(self, device_type: str) -> list[Case]:
        """Return the cases to run on a device: one for each candidate."""
        if not self.is_costly or device_type == "cpu":
            return [self]
        return [Case((candidate,)) for candidate in self.candidates]


def run_with(listed: Iterable[Case | Request]) -> Callable[[Test], Test]:
    """Mark a test to be run for every kernel (its `kernel`) and every case that the kernel takes (its `asked`)."""

    def mark(test: Test) -> Test:
        cases = tuple(each if isinstance(each, Case) else Case((each,)) for each in listed)
        test.cases = cases  # type: ignore[attr-defined]
        return test

    return mark


def cases_of(tests: object) -> list[Case]:
    """Return all cases of a test class, or of one test."""
    members = [tests, *(getattr(tests, name) for name in dir(tests) if name.startswith("test_"))]
    return [case for member in members for case in getattr(member, "cases", ())]


def label(request: Request) -> str:
    """Return the short label of a request in the names of tests: "n4-g2-d16-s33-b2-causal-block_size 16-fp32"."""
    labelled = (field for field in fields(request) if field.name not in UNLABELLED)
    labels = (_field_label(field, getattr(request, field.name)) for field in labelled)
    return "-".join([*filter(None, labels), DTYPE_NAMES.get(str(request.dtype), str(request.dtype))])


def _field_label(field: Field[Any], value: Any) -> str:
    """Return the label of one field; "" at its default, except for a mask."""
    if field.name != "mask" and value == field.default:
        return ""
    if isinstance(value, bool):
        return field.name if value else f"no {field.name.removeprefix('has_')}"
    text = f"{value:.4g}" if isinstance(value, float) else DTYPE_NAMES.get(str(value), str(value))
    return ABBREVIATIONS.get(field.name, f"{field.name} ") + text


TIERS = ("device", "kernels", "training")
"""A class of tests names its tier; one that names none is in "kernels"."""
