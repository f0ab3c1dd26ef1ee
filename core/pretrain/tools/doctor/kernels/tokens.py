"""Trials of the kernels that compute every token by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.tools.doctor.kernels.oracle import oracle
from pretrain.tools.doctor.kernels.room import ORACLE_ELEMENTS, ORACLE_FLOPS, step_for
from pretrain.tools.doctor.kernels.trial import Trial, random

if TYPE_CHECKING:
    from pretrain.plugins.requests import (
        ActivationRequest,
        BiasDropoutAddRequest,
        CrossEntropyRequest,
        LinearRequest,
        NormRequest,
        RotaryRequest,
    )
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.kernels.room import Room

FEW = 128
"""Tokens with which a linear other than the largest one is tried: its shape is what matters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Tokens of a trial.

    Attributes:
        length: s, of the call.
        batch: b.
        wanted: s of the training.
        step: every which token of the sequence the oracle computes.
    """

    length: int
    batch: int
    wanted: int
    step: int

    @classmethod
    def of(cls, recipe: Recipe, room: Room, width: int, *, is_split: bool = False, **costs: float) -> Tokens:
        """Return the training's tokens, or as many as there is room for.

        Args:
            recipe: of the training.
            room: of the trial.
            width: entries of the widest tensor for one token.
            is_split: whether sequence parallelism leaves this rank a part of them.
            costs: `flops` of one token, and its number of tensors of that width (by default 12) as `tensors`.
        """
        parallel, batch = recipe.parallel, recipe.train.micro_batch_size
        wanted = recipe.model.seq_length
        if is_split and parallel.sequence_parallel:
            wanted //= parallel.tensor_model_parallel_size
        flops, size = costs.get("flops", 0.0), 4.0 * costs.get("tensors", 12) * width
        found = room.units(wanted * batch, "a token", flops=flops, size=size)
        length = max(1, min(wanted, found // batch))
        step = step_for(length * batch * width, ORACLE_ELEMENTS)
        if flops:
            step = max(step, step_for(int(length * batch * flops), ORACLE_FLOPS))
        return cls(length=length, batch=batch, wanted=wanted, step=min(step, length))

    @property
    def part(self) -> tuple[slice]:
        """Index of the oracle's part, along the sequence."""
        return (slice(None, None, self.step),)

    def __str__(self) -> str:
        cut = f" of {self.wanted}" if self.length < self.wanted else ""
        compared = f", 1 token in {self.step} compared" if self.step > 1 else ""
        return f"s {self.length}{cut}, b {self.batch}{compared}"


def norm(request: NormRequest, recipe: Recipe, room: Room) -> Trial:
    """Return the trial of a `NormFn`."""
    size = request.hidden_size
    tokens = Tokens.of(recipe, room, size, is_split=True)
    inputs = {
        "x": random(tokens.length, tokens.batch, size, dtype=request.dtype, seed=0),
        "weight": random(size, dtype=request.weight_dtype, seed=1) + 1,
    }
    if request.kind == "LayerNorm":
        inputs["bias"] = random(size, dtype=request.weight_dtype, seed=2)
    return Trial(
        inputs=inputs,
        oracle=oracle(request),
        parts={"x": tokens.part, "output": tokens.part},
        sizes=f"{tokens}, h {size}",
    )


def rotary(request: RotaryRequest, recipe: Recipe, room: Room) -> Trial:
    """Return the trial of a `RotaryFn`, for the queries."""
    heads, size = request.heads, request.head_size
    tokens = Tokens.of(recipe, room, heads * size)
    frequencies = 10000.0 ** (-torch.arange(0, request.rotary_size, 2) / request.rotary_size)
    angles = torch.outer(torch.arange(tokens.length).float(), frequencies).repeat(1, 2)[:, None, None]
    return Trial(
        inputs={"x": random(tokens.length, tokens.batch, heads, size, dtype=request.dtype, seed=0)},
        constants={"cos": angles.cos(), "sin": angles.sin()},
        oracle=oracle(request),
        parts=dict.fromkeys(("x", "cos", "sin", "output"), tokens.part),
        sizes=f"{tokens}, {heads} heads of {size}",
    )


def activation(request: ActivationRequest, recipe: Recipe, room: Room) -> Trial:
    """Return the trial of an `ActivationFn`."""
    width = request.features * (2 if request.kind == "swiglu" else 1)
    tokens = Tokens.of(recipe, room, width)
    inputs = {"x": random(tokens.length, tokens.batch, width, dtype=request.dtype, seed=0) * 2}
    if request.has_bias:
        inputs["bias"] = random(width, dtype=request.dtype, seed=1)
    return Trial(
        inputs=inputs,
        oracle=oracle(request),
        parts={"x": tokens.part, "output": tokens.part},
        sizes=f"{tokens}, {request.kind} of {width}",
    )


def bias_dropout_add(request: BiasDropoutAddRequest, recipe: Recipe, room: Room) -> Trial:
    """Return the trial of a `BiasDropoutAddFn`, which drops nothing."""
    size = request.hidden_size
    tokens = Tokens.of(recipe, room, size, is_split=True)
    shape = tokens.length, tokens.batch, size
    inputs = {name: random(*shape, dtype=request.dtype, seed=seed) for seed, name in enumerate(("x", "residual"))}
    constants: dict[str, Any] = {"training": False}
    if request.has_bias:
        inputs["bias"] = random(size, dtype=request.dtype, seed=2)
    else:
        constants["bias"] = None
    return Trial(
        inputs=inputs,
        constants=constants,
        oracle=oracle(request),
        parts=dict.fromkeys(("x", "residual", "output"), tokens.part),
        sizes=f"{tokens}, h {size}",
    )


def cross_entropy(request: CrossEntropyRequest, recipe: Recipe, room: Room) -> Trial:
    """Return the trial of a `CrossEntropyFn` over the columns of one rank."""
    columns = request.padded_vocab_size
    tokens = Tokens.of(recipe, room, columns, tensors=6)
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(request.vocab_size, (tokens.length, tokens.batch), generator=generator)
    return Trial(
        inputs={"logits": random(tokens.length, tokens.batch, columns, dtype=request.dtype, seed=0) * 3},
        constants={"target": target},
        oracle=oracle(request),
        parts=dict.fromkeys(("logits", "target", "output"), tokens.part),
        sizes=f"{tokens}, {columns} columns",
        overwritten=frozenset({"logits"}),
    )


def linear_shapes(recipe: Recipe) -> list[tuple[int, int]]:
    """Return inputs and outputs of a rank's linears, each pair once: into the MLP first, then out, QKV, projection."""
    model, tensor = recipe.model, recipe.parallel.tensor_model_parallel_size
    hidden, ffn = model.hidden_size, model.ffn_hidden_size // tensor
    heads = model.num_attention_heads * model.head_size // tensor
    groups = model.num_query_groups * model.head_size // tensor
    into = ffn * (2 if model.activation == "swiglu" else 1)
    return list(dict.fromkeys([(hidden, into), (ffn, hidden), (hidden, heads + 2 * groups), (heads, hidden)]))


def linear(request: LinearRequest, recipe: Recipe, room: Room, shape: tuple[int, int] | None = None) -> Trial:
    """Return the trial of a `LinearFn` without communication.

    Args:
        request: of the kernel.
        recipe: of the training.
        room: of the trial.
        shape: inputs and outputs; None: those of the first matmul of the MLP. Others are tried with few tokens.
    """
    rows, columns = shape or linear_shapes(recipe)[0]
    flops = 6.0 * rows * columns
    if shape is not None:
        room = replace(room, flops=min(room.flops, FEW * flops))
    tokens = Tokens.of(recipe, room, max(rows, columns), flops=flops)
    inputs = {
        "x": random(tokens.length, tokens.batch, rows, dtype=request.dtype, seed=0),
        "weight": random(columns, rows, dtype=request.dtype, seed=1),
    }
    if recipe.model.add_bias_linear:
        inputs["bias"] = random(columns, dtype=request.dtype, seed=2)
    return Trial(
        inputs=inputs,
        oracle=oracle(replace(request, main_grad_dtype=None)),
        parts={"x": tokens.part, "output": tokens.part},
        sizes=f"{tokens}, {rows} to {columns}",
        main_grads={} if request.main_grad_dtype is None else {"weight": request.main_grad_dtype},
    )
