"""Weights of a model: initial values, global names, and those whose gradients tensor-parallel ranks must sum.

All layouts have the same values: they depend on the seed and the parameter's global name, and a rank generates only
its own, in blocks of rows from a generator of the CPU that the key and the block's number seed (`normal_rows`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from pretrain.recipe import Recipe

IS_EMBEDDING = "is_embedding_or_output_parameter"
"""megatron-core's mark on the weights of tokens' embedding and output layer (setup_embeddings_and_output_layer)."""


def standard_deviation(recipe: Recipe, method: str) -> float:
    """Return the standard deviation of an initialization method.

    normal: `init_method_std`. scaled_normal: divided by sqrt(2 L), the residual branches of a GPT-2 (Radford et al.
    2019, section 2.3; Megatron's scaled_init_method_normal). small_init: sqrt(2 / (5 h)) (Nguyen and Salazar 2019,
    arXiv:1910.05895). wang_init: 2 / (L sqrt(h)) (mesh-transformer-jax). These two as GPT-NeoX's init_functions.py.
    """
    model = recipe.model
    match method:
        case "normal":
            return model.init_method_std
        case "scaled_normal":
            return model.init_method_std / math.sqrt(2.0 * model.num_layers)
        case "small_init":
            return math.sqrt(2.0 / (5.0 * model.hidden_size))
        case "wang_init":
            return 2.0 / (model.num_layers * math.sqrt(model.hidden_size))
        case _:
            msg = f"init method {method!r} is unknown"
            raise ValueError(msg)


@torch.no_grad()
def initialize(
    model: nn.Module,
    recipe: Recipe,
    vocab_size: int,
    tensor_parallel_rank: int,
    whole: Callable[[Tensor], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Set every parameter of one pipeline stage: norms to one, biases to zero, matrices to normal values.

    Rows of the vocabulary's padding are zero and stay zero, because their number depends on the layout. `whole` is the
    context in which a parameter is whole, while it is written.
    """
    for name, parameter in global_names(model):
        with whole(parameter):
            _initialize(name, parameter, recipe, vocab_size, tensor_parallel_rank)


def convert_fake(model: nn.Module, dtype: torch.dtype) -> None:
    """Give fake parameters a dtype for good, as `nn.Module.to` does to others; it cannot exchange a fake's memory."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dtype != dtype:
                converted = torch.nn.Parameter(parameter.detach().to(dtype))
                converted.__dict__.update(parameter.__dict__)  # the marks that megatron-core reads
                setattr(module, name, converted)
    model._apply = lambda *_args, **_options: model  # type: ignore[method-assign]  # noqa: SLF001  .half(), .to()


def _initialize(name: str, parameter: Tensor, recipe: Recipe, vocab_size: int, tensor_parallel_rank: int) -> None:
    if name.endswith("bias"):
        parameter.zero_()
    elif "layernorm" in name:
        parameter.fill_(1.0)
    else:
        output = name.endswith(("linear_proj.weight", "linear_fc2.weight"))
        method = recipe.model.output_layer_init_method if output else recipe.model.init_method
        deviation = standard_deviation(recipe, method)
        _fill(parameter, f"{recipe.train.seed}/{name}", deviation, tensor_parallel_rank)
        if name in {"embedding.word_embeddings.weight", "output_layer.weight"}:
            parameter[max(0, vocab_size - tensor_parallel_rank * parameter.shape[0]) :] = 0.0


EXPERTS = "experts_and_rank"
"""Mark of the weights of several experts, [experts, out, in]: the number of the first, over all ranks, and this rank's
place among those that share each."""


def is_replicated(weight: Tensor) -> bool:
    """Say whether all data-parallel ranks hold a weight alike; not so experts that are with some of them."""
    return bool(getattr(weight, "allreduce", True))


PARTIAL = "gradient_is_partial"
"""Mark of a weight that every tensor-parallel rank has whole, with a part of its gradient."""


def partial_gradients(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights whose gradients must be summed over the tensor-parallel ranks; the one list of both engines.

    Each rank has such a weight whole, and uses it on its own part of the sequence (sequence parallelism, which
    megatron-core marks too) or of the heads.
    """
    marks = (PARTIAL, "sequence_parallel")
    return [weight for weight in model.parameters() if any(getattr(weight, mark, False) for mark in marks)]


def global_names(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters with global names: layers are counted over all stages, and a tied output is the embedding."""
    yield from _named_globally(model, model.named_parameters())


def saved_names(model: nn.Module) -> Iterator[str]:
    """Yield the global names of what a checkpoint has of a model: its parameters, and the biases of routers."""
    yield from (name for name, _ in _named_globally(model, (*model.named_parameters(), *_biases(model))))


def _biases(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(".expert_bias")]


def _named_globally(model: nn.Module, named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    layers = getattr(model, "decoder").layers  # noqa: B009  megatron-core's GPTModel is untyped
    for name, parameter in named:
        if name.startswith("decoder.layers."):
            local, rest = name.removeprefix("decoder.layers.").split(".", 1)
            yield f"decoder.layers.{layers[int(local)].layer_number - 1}.{rest}", parameter
        elif name == "output_layer.weight" and getattr(parameter, "shared_embedding", False):
            yield "embedding.word_embeddings.weight", parameter
        else:
            yield name, parameter


def _fill(parameter: Tensor, key: str, deviation: float, rank: int) -> None:
    dim = getattr(parameter, "partition_dim", -1) if getattr(parameter, "tensor_model_parallel", False) else -1
    stride = getattr(parameter, "partition_stride", 1)  # swiglu holds [gate; up]
    if hasattr(parameter, EXPERTS):
        first, place = getattr(parameter, EXPERTS)
        for number, weight in enumerate(parameter, first):
            _fill_normal(weight, f"{key}/{number}", deviation, place, dim - 1, stride)
    else:
        _fill_normal(parameter, key, deviation, rank, dim, stride)


def _fill_normal(parameter: Tensor, key: str, deviation: float, rank: int, split: int, stride: int) -> None:
    """Fill a rank's part of a matrix, which is split along a dimension, or with -1 whole."""
    dim, parts = (split, stride) if split >= 0 else (0, 1)
    for part, values in enumerate(parameter.chunk(parts, dim)):
        first = rank * values.shape[dim] if split >= 0 else 0
        shape = values.transpose(0, dim).shape
        for begin, numbers in normal_rows(f"{key}/{part}", shape[1:], deviation, first, first + shape[0]):
            # In the order of the parameter's memory: single rows here would be columns there, far from each other.
            inside = numbers.to(parameter.dtype).transpose(0, dim).contiguous()
            values.narrow(dim, begin - first, len(numbers)).copy_(inside)


BLOCK_ELEMENTS = 1 << 16
GROUP = 32
"""Blocks that are made together, 8 MiB in fp32, so that a piece of a matrix written by columns has several in a row."""


def normal_rows(key: str, row: Sequence[int], deviation: float, first: int, end: int) -> Iterator[tuple[int, Tensor]]:
    """Yield rows `first` up to `end` of normal numbers in pieces, as (number of the first row, fp32 rows).

    They depend on the key and the row's number. As many threads as torch uses make pieces ahead of the caller; torch
    releases the GIL while it draws.
    """
    height = max(1, BLOCK_ELEMENTS // max(1, torch.Size(row).numel()))
    blocks = range(first // height, -(-end // height))
    pending: deque[tuple[int, Future[Tensor]]] = deque()
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for begin in range(0, len(blocks), GROUP):
            group = blocks[begin : begin + GROUP]
            pending.append((group[0] * height, threads.submit(_draw, key, group, (height, *row), deviation)))
            if len(pending) > torch.get_num_threads():
                yield _clipped(*pending.popleft(), first, end)
        while pending:
            yield _clipped(*pending.popleft(), first, end)


def _clipped(begin: int, drawn: Future[Tensor], first: int, end: int) -> tuple[int, Tensor]:
    """Return a piece without rows before `first` and from `end` on."""
    numbers = drawn.result()
    return max(begin, first), numbers[max(0, first - begin) : end - begin]


def _draw(key: str, blocks: range, shape: tuple[int, ...], deviation: float) -> Tensor:
    numbers = torch.empty((len(blocks), *shape), device="cpu")
    for number, block in zip(blocks, numbers, strict=True):
        block.normal_(0.0, deviation, generator=_generator(f"{key}/{number}"))
    return numbers.flatten(0, 1)


def _generator(key: str) -> torch.Generator:
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
    return torch.Generator().manual_seed(seed)


_LAYER = re.compile(r"^(?:.*\.)?layers\.\d+(?=\.)")


def named_weights(models: Sequence[nn.Module]) -> list[tuple[str, Tensor]]:
    """Return the weights of this rank's model chunks by name, such as "mlp.linear_fc1.weight (layer 7 of 12)"."""
    named = []
    for model in models:
        modules = dict(model.named_modules())
        for name, weight in (*model.named_parameters(), *_biases(model)):
            layer = _LAYER.match(name)
            shown = _shown(name, modules[layer[0]]) if layer else name
            named.append((shown, weight))
    return named


def _shown(name: str, layer: nn.Module) -> str:
    rest = name.split("layers.", 1)[1].partition(".")[2]
    return f"{rest} (layer {layer.layer_number} of {layer.config.num_layers})"  # type: ignore[union-attr]
