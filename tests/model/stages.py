"""Parameters as one tensor-parallel rank and pipeline stage holds them, without megatron-core's groups."""

from __future__ import annotations

import torch
from torch import nn


def parameter(shape, split=None, tensor=1, stride=1):
    """Make a parameter whose `split` dimension is divided by `tensor`, marked as megatron-core marks it."""
    shape = list(shape)
    if split is not None:
        shape[split] //= tensor
    made = nn.Parameter(torch.full(shape, torch.nan))
    if split is not None:
        made.tensor_model_parallel, made.partition_dim, made.partition_stride = True, split, stride
    return made


class Weights(nn.Module):
    """A module with the given parameters."""

    def __init__(self, **parameters):
        super().__init__()
        for name, value in parameters.items():
            setattr(self, name, value)


class Stage(nn.Module):
    """Layers `first` to `last` (from 0) of a GPT, with the embedding on the first stage and the output on the last."""

    def __init__(self, recipe, vocab_size, *, tensor=1, first=0, last=None):
        super().__init__()
        model = recipe.model
        h, layers = model.hidden_size, model.num_layers
        last = layers if last is None else last
        padded = model.padded_vocab_size(vocab_size, tensor)
        if first == 0:
            self.embedding = nn.Module()
            self.embedding.word_embeddings = Weights(weight=parameter((padded, h), 0, tensor))
            self.embedding.position_embeddings = Weights(weight=parameter((model.max_position_embeddings, h)))
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList(Layer(model, number + 1, tensor) for number in range(first, last))
        if last == layers:
            self.output_layer = Weights(weight=parameter((padded, h), 0, tensor))
            if not model.untie_embeddings_and_output_weights:
                self.output_layer.weight.shared_embedding = True


class Layer(nn.Module):
    """One layer."""

    def __init__(self, model, layer_number, tensor):
        super().__init__()
        h, f = model.hidden_size, model.ffn_hidden_size
        gated = model.activation == "swiglu"
        self.layer_number = layer_number
        self.input_layernorm = Weights(weight=parameter((h,)), bias=parameter((h,)))
        self.self_attention = nn.Module()
        self.self_attention.linear_qkv = Weights(weight=parameter((3 * h, h), 0, tensor), bias=parameter((3 * h,)))
        self.self_attention.linear_proj = Weights(weight=parameter((h, h), 1, tensor), bias=parameter((h,)))
        self.mlp = nn.Module()
        stride, width = (2, 2 * f) if gated else (1, f)
        self.mlp.linear_fc1 = Weights(weight=parameter((width, h), 0, tensor, stride))
        self.mlp.linear_fc2 = Weights(weight=parameter((h, f), 1, tensor))


def put_together(parts):
    """Join what tensor-parallel ranks hold of one parameter."""
    first = parts[0]
    if not hasattr(first, "partition_dim"):
        assert all(torch.equal(part, first) for part in parts)
        return first.detach()
    dim, stride = first.partition_dim, first.partition_stride
    pieces = [part.detach().chunk(stride, dim) for part in parts]
    return torch.cat([piece[number] for number in range(stride) for piece in pieces], dim)
