"""Example arguments of one call of a kernel, for every operation but the collectives and the optimizer."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from pretrain.conformance.comparison import placed, random
from pretrain.plugins.requests import Mask
from pretrain.plugins.signatures import SIGNATURES, Documents, by_position

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from pretrain.plugins import requests
    from pretrain.plugins.requests import Request
    from pretrain.plugins.signatures import MoePermutation

    Asked = TypeVar("Asked", bound=Request)


@dataclass(frozen=True, kw_only=True)
class ExampleCall:
    """Arguments of one call."""

    inputs: dict[str, Tensor]  # by the names of the kernel's arguments; they get gradients
    constants: dict[str, Any] = field(default_factory=dict)  # others, which get none
    main_grad_dtype: torch.dtype | None = None  # of the weight's `main_grad`; None where it has none

    def placed(self, place: Callable[[Tensor], Tensor]) -> ExampleCall:
        """Return the same with every tensor put onto a device, or made a fake one."""
        return replace(
            self,
            inputs={name: place(x) for name, x in self.inputs.items()},
            constants={name: placed(x, place) for name, x in self.constants.items()},
        )


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a call about which a request may say nothing."""

    tokens: int  # of a sequence
    batch: int = 2
    linear: tuple[int, int] = (24, 40)  # inputs and outputs of a linear
    has_bias: bool = True  # of a linear


def example_call(request: Request, tokens: int | Sizes) -> ExampleCall:
    """Return arguments for a request, random and on the CPU, of these sizes, or so many tokens, where it says none."""
    return _MAKERS[request.operation](request, tokens if isinstance(tokens, Sizes) else Sizes(tokens=tokens))


def longer(request: Asked, length: int) -> Asked:
    """Return a request for sequences of that length, where it says a length."""
    names = {"seq_length", "queries", "keys"} & {part.name for part in fields(request)}
    changed: dict[str, Any] = dict.fromkeys((name for name in names if getattr(request, name)), length)
    return replace(request, **changed)


def rotations(length: int, size: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin, fp32 [s, 1, 1, size], of angles position * 10000^(-2 i / size); both halves are equal.

    Both are multiplied by 1.25, as YaRN multiplies them: a kernel must not take cos^2 + sin^2 for 1.
    """
    frequencies = 10000.0 ** (-torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1).view(length, 1, 1, size)
    return 1.25 * angles.cos(), 1.25 * angles.sin()


def _mask(kind: Mask, batch: int, queries: int, keys: int) -> Tensor | Documents | None:
    is_square = kind is Mask.ARBITRARY and queries == keys
    return documents(batch, queries) if is_square else example_mask(kind, batch, queries, keys)


def _attention(request: requests.AttentionRequest, _: Sizes) -> ExampleCall:
    """Make query [s, b, n, d], key and value [keys, b, g, d]."""
    queries, keys, batch = request.seq_length, request.most_keys, request.micro_batch_size
    shapes = {"query": (queries, request.heads), "key": (keys, request.query_groups)}
    inputs = {
        name: random(length, batch, heads, request.head_size, dtype=request.dtype, seed=seed)
        for seed, (name, (length, heads)) in enumerate((shapes | {"value": shapes["key"]}).items())
    }
    return ExampleCall(inputs=inputs, constants={"mask": _mask(request.mask, batch, queries, keys)})


def _softmax(request: requests.SoftmaxRequest, sizes: Sizes) -> ExampleCall:
    scores = random(sizes.batch, request.heads, request.queries, request.keys, dtype=request.dtype)
    mask = _mask(request.mask, sizes.batch, request.queries, request.keys)
    return ExampleCall(inputs={"scores": scores}, constants={"mask": mask})


def _norm(request: requests.NormRequest, sizes: Sizes) -> ExampleCall:
    size, dtype = request.hidden_size, request.weight_dtype
    bias = {"bias": random(size, dtype=dtype, seed=2)} if request.kind == "LayerNorm" else {}
    x = random(sizes.tokens, sizes.batch, size, dtype=request.dtype)
    return ExampleCall(inputs={"x": x, "weight": random(size, dtype=dtype, seed=1) + 1, **bias})


def _rotary(request: requests.RotaryRequest, sizes: Sizes) -> ExampleCall:
    x = random(request.seq_length, sizes.batch, request.heads, request.head_size, dtype=request.dtype)
    cos, sin = rotations(request.seq_length, request.rotary_size)
    return ExampleCall(inputs={"x": x}, constants={"cos": cos, "sin": sin})


def _activation(request: requests.ActivationRequest, sizes: Sizes) -> ExampleCall:
    columns = request.features * (2 if request.kind == "swiglu" else 1)
    bias = {"bias": random(columns, dtype=request.dtype, seed=1)} if request.has_bias else {}
    return ExampleCall(inputs={"x": random(sizes.tokens, sizes.batch, columns, dtype=request.dtype) * 2, **bias})


def _bias_dropout_add(request: requests.BiasDropoutAddRequest, sizes: Sizes) -> ExampleCall:
    size, dtype = request.hidden_size, request.dtype
    x, residual = (random(sizes.tokens, sizes.batch, size, dtype=dtype, seed=seed) for seed in (0, 2))
    if not request.has_bias:
        return ExampleCall(inputs={"x": x, "residual": residual}, constants={"bias": None})
    return ExampleCall(inputs={"x": x, "residual": residual, "bias": random(size, dtype=dtype, seed=1)})


def _cross_entropy(request: requests.CrossEntropyRequest, _: Sizes) -> ExampleCall:
    shape = (request.seq_length, request.micro_batch_size)
    logits = random(*shape, request.padded_vocab_size, dtype=request.dtype) * 3
    target = torch.randint(request.vocab_size, shape, generator=torch.Generator().manual_seed(5))
    target.view(-1)[-1] = request.vocab_size - 1
    return ExampleCall(inputs={"logits": logits}, constants={"target": target})


def _linear(request: requests.LinearRequest, sizes: Sizes) -> ExampleCall:
    rows, columns = sizes.linear
    if request.shapes and (columns, rows) not in request.shapes:
        columns, rows = request.shapes[0]
    given = {
        "x": random(sizes.tokens, sizes.batch, rows, dtype=request.dtype),
        "weight": random(columns, rows, dtype=request.dtype, seed=1),
    }
    given |= {"bias": random(columns, dtype=request.dtype, seed=2)} if sizes.has_bias else {}
    return ExampleCall(inputs=given, main_grad_dtype=request.main_grad_dtype)


def _grouped_linear(request: requests.GroupedLinearRequest, sizes: Sizes) -> ExampleCall:
    return grouped_call(request, uneven_counts(sizes.tokens * sizes.batch, request.experts))


def grouped_call(
    request: requests.GroupedLinearRequest, counts: Sequence[int], *, is_second: bool = False
) -> ExampleCall:
    """Return arguments of the first linear of experts, or of the second, with so many rows for each expert."""
    shapes = (request.ffn_hidden_size * (2 if request.is_gated else 1), request.hidden_size)
    outputs, inputs = (request.hidden_size, request.ffn_hidden_size) if is_second else shapes
    given = {
        "x": random(sum(counts), inputs, dtype=request.dtype),
        "weight": random(request.experts, outputs, inputs, dtype=request.dtype, seed=1),
    }
    constants = {"counts": torch.tensor(counts)}
    return ExampleCall(inputs=given, constants=constants, main_grad_dtype=request.main_grad_dtype)


def uneven_counts(rows: int, experts: int) -> list[int]:
    """Return numbers of rows that differ from expert to expert; the second one has none."""
    weights = [0 if expert == 1 else expert % 3 + 1 for expert in range(experts)]
    counts = [rows * weight // sum(weights) for weight in weights]
    return [rows - sum(counts[1:]), *counts[1:]]


def _moe_permute(request: requests.MoePermuteRequest, sizes: Sizes) -> ExampleCall:
    tokens = sizes.tokens * sizes.batch
    probs = random(tokens, request.experts, dtype=torch.float32, seed=1).sigmoid()
    chosen = random(tokens, request.experts, dtype=torch.float32, seed=2).topk(request.topk).indices
    routing_map = torch.zeros(tokens, request.experts, dtype=torch.bool).scatter_(1, chosen, value=True)
    given = {"tokens": random(tokens, request.hidden_size, dtype=request.dtype), "probs": probs}
    return ExampleCall(inputs=given, constants={"routing_map": routing_map})


def _router(request: requests.RouterRequest, sizes: Sizes) -> ExampleCall:
    logits = random(sizes.tokens * sizes.batch, request.experts, dtype=request.dtype) * 2
    bias = random(request.experts, dtype=request.dtype, seed=1) if request.has_bias else None
    return ExampleCall(inputs={"logits": logits}, constants={"bias": bias})


_MAKERS: dict[str, Callable[[Any, Sizes], ExampleCall]] = {
    "activation": _activation,
    "attention": _attention,
    "bias_dropout_add": _bias_dropout_add,
    "cross_entropy": _cross_entropy,
    "grouped_linear": _grouped_linear,
    "linear": _linear,
    "moe_permute": _moe_permute,
    "norm": _norm,
    "rotary": _rotary,
    "router": _router,
    "softmax": _softmax,
}
OPERATIONS = tuple(_MAKERS)


def example_mask(kind: Mask, batch: int, queries: int, keys: int) -> Tensor | Documents | None:
    """Return a mask of the kind; of a tensor True = masked, and every query sees at least the first key."""
    if kind in (Mask.NONE, Mask.CAUSAL):
        return None
    if kind is Mask.DOCUMENTS:
        return example_documents(batch, queries, keys)
    if kind is Mask.KEY_PADDING:
        lengths = torch.arange(batch) % keys + (keys + 1) // 2
        return (torch.arange(keys) >= lengths.clamp(max=keys)[:, None]).view(batch, 1, 1, keys)
    generator = torch.Generator().manual_seed(queries)
    mask = torch.rand(batch, 1, queries, keys, generator=generator) < 0.4
    mask |= torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
    mask[..., 0] = False
    return mask


def example_documents(batch: int, queries: int, keys: int, lengths: Sequence[int] | None = None) -> Documents:
    """Return documents on the CPU: one token, none, then others of these lengths, or of one for each sample.

    The first queries see keys from before them, where there are more keys.
    """
    rows = []
    for row in range(batch):
        each = itertools.chain((1, 0), lengths or itertools.repeat(5 + 3 * row + keys // 4))
        ends = list(itertools.takewhile(lambda end: end < keys, itertools.accumulate(each)))
        rows.append([*ends, keys])
    key_ends = [0, *(row * keys + end for row, ends in enumerate(rows) for end in ends)]
    before = keys - queries
    query_ends = [0, *(row * queries + max(0, end - before) for row, ends in enumerate(rows) for end in ends)]
    return Documents.of(torch.tensor([query_ends, key_ends], dtype=torch.int32))


def documents(batch: int, length: int) -> Tensor:
    """Return a causal mask [b, 1, s, s] of rows that hold several documents, of different lengths in each row."""
    of_token = torch.stack([torch.arange(length) // (5 + 3 * row + length // 4) for row in range(batch)])
    is_other = of_token[:, :, None] != of_token[:, None, :]
    return (is_other | torch.ones(length, length, dtype=torch.bool).triu(1)).unsqueeze(1)


def mask_with_empty_rows(kind: Mask, batch: int, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """Return a mask tensor under which some queries see no key, and bool [batch, queries], True for those."""
    mask = example_mask(kind, batch, queries, keys)
    if not isinstance(mask, torch.Tensor):
        msg = f"{kind} has no mask tensor"
        raise ValueError(msg)  # noqa: TRY004  the kind is wrong
    empty = torch.zeros(batch, queries, dtype=torch.bool)
    if kind is Mask.KEY_PADDING:
        empty[-1] = True
    else:
        empty[:, ::3] = True
    return mask | empty.view(batch, 1, queries, 1)[:, :, : mask.shape[2]], empty


def as_function(operation: str, kernel: Any) -> Callable[..., Tensor]:
    """Return a kernel as a function of one result, called by the names of its arguments (`ExampleCall`).

    Of a router the weights; of a permutation the sum of each token's rows times their weights.
    """
    if operation == "moe_permute":
        return _there_and_back(kernel)
    if operation == "router":
        return lambda **given: by_position(operation, kernel)(**given)[0]
    return by_position(operation, kernel) if operation in SIGNATURES else kernel


def _there_and_back(kernel: MoePermutation) -> Callable[..., Tensor]:
    def call(*, tokens: Tensor, probs: Tensor, routing_map: Tensor) -> Tensor:
        rows, weights, order = kernel.permute(tokens, routing_map, probs)
        weighted = (rows * weights.unsqueeze(-1)).to(rows.dtype)
        return kernel.unpermute(weighted, order, tokens.shape[0])

    return call
