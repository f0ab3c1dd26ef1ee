"""Initialize weights independently of the parallel layout and the device.

Every parameter is filled along the dimension that tensor parallelism splits, with numbers that depend on the seed and
the parameter's global name (`pretrain.model.normal`). A rank generates only its own, and all layouts have the same.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from pretrain.model.normal import normal_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from pretrain.recipe import Recipe


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

    Rows of the vocabulary's padding are zero and stay zero, because their number depends on the layout.

    Args:
        model: the stage.
        recipe: with the model to train.
        vocab_size: entries of the tokenizer, before padding.
        tensor_parallel_rank: of this process.
        whole: context in which a parameter is whole, while it is written; ZeRO-3 partitions it.
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
        _fill_normal(parameter, f"{recipe.train.seed}/{name}", deviation, tensor_parallel_rank)
        if name in {"embedding.word_embeddings.weight", "output_layer.weight"}:
            parameter[max(0, vocab_size - tensor_parallel_rank * parameter.shape[0]) :] = 0.0


def global_names(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters with global names: layers are counted over all stages, and a tied output is the embedding."""
    layers = getattr(model, "decoder").layers  # noqa: B009  megatron-core's GPTModel is untyped
    for name, parameter in model.named_parameters():
        if name.startswith("decoder.layers."):
            local, rest = name.removeprefix("decoder.layers.").split(".", 1)
            yield f"decoder.layers.{layers[int(local)].layer_number - 1}.{rest}", parameter
        elif name == "output_layer.weight" and getattr(parameter, "shared_embedding", False):
            yield "embedding.word_embeddings.weight", parameter
        else:
            yield name, parameter


def _fill_normal(parameter: Tensor, key: str, deviation: float, rank: int) -> None:
    split = getattr(parameter, "tensor_model_parallel", False)
    dim = parameter.partition_dim if split else 0  # type: ignore[attr-defined]
    parts = parameter.partition_stride if split else 1  # type: ignore[attr-defined]  # swiglu holds [gate; up]
    for part, values in enumerate(parameter.chunk(parts, dim)):
        first = rank * values.shape[dim] if split else 0
        shape = values.transpose(0, dim).shape
        for begin, numbers in normal_rows(f"{key}/{part}", shape[1:], deviation, first, first + shape[0]):
            # In the order of the parameter's memory: single rows here would be columns there, far from each other.
            inside = numbers.to(parameter.dtype).transpose(0, dim).contiguous()
            values.narrow(dim, begin - first, len(numbers)).copy_(inside)
