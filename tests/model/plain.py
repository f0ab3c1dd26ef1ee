"""A GPT in plain torch, written from the papers: what pretrain.model must compute, in float64."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias


def losses(weights, recipe, vocab_size, tokens, labels, mask=None):
    """Return the loss of every token [b, s].

    Args:
        weights: name -> float64 tensor, named as megatron-core names them.
        recipe: the shape of the model.
        vocab_size: columns of the logits from here on do not exist.
        tokens: [b, s].
        labels: [b, s].
        mask: [b, 1, s, s], True where a token must not look; by default causal, with the model's window.
    """
    model = recipe.model
    x = weights["embedding.word_embeddings.weight"][tokens]
    if model.embedding_layernorm:
        x = norm(x, weights, "embedding_layernorm", model)
    if model.position_embedding_type == "learned_absolute":
        x = x + weights["embedding.position_embeddings.weight"][: tokens.shape[1]]
    if mask is None:
        before = torch.arange(tokens.shape[1])[:, None] - torch.arange(tokens.shape[1])  # the query
        mask = before < 0
        if model.window_size is not None:  # Beltagy et al. 2020, arXiv 2004.05150, as Jiang et al. 2023, 2310.06825
            mask = mask | (before >= model.window_size)
    for number in range(model.num_layers):
        name = f"decoder.layers.{number}"
        attended = attention(norm(x, weights, f"{name}.input_layernorm", model), weights, name, model, mask)
        y = x if model.parallel_residual else x + attended
        fed = mlp(norm(y, weights, f"{name}.pre_mlp_layernorm", model), weights, name, model)
        x = x + attended + fed
    x = norm(x, weights, "decoder.final_layernorm", model)
    output = "output_layer" if model.untie_embeddings_and_output_weights else "embedding.word_embeddings"
    logits = x @ weights[f"{output}.weight"][:vocab_size].T
    return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")


def linear(x, weights, name):
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def norm(x, weights, name, model):
    """Ba et al. 2016, arXiv 1607.06450; Zhang and Sennrich 2019, arXiv 1910.07467."""
    if model.normalization == "RMSNorm":
        return x / (x.square().mean(-1, keepdim=True) + model.layernorm_epsilon).sqrt() * weights[f"{name}.weight"]
    x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + model.layernorm_epsilon).sqrt()
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def mlp(x, weights, name, model):
    x = linear(x, weights, f"{name}.mlp.linear_fc1")
    if model.activation == "swiglu":  # Shazeer 2020, arXiv 2002.05202
        gate, up = x.chunk(2, -1)
        x = gate / (1 + (-gate).exp()) * up
    elif model.activation == "gelu_tanh":  # Hendrycks and Gimpel 2016, arXiv 1606.08415
        x = 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())
    else:
        x = 0.5 * x * (1 + (x / math.sqrt(2)).erf())
    return linear(x, weights, f"{name}.mlp.linear_fc2")


def attention(x, weights, name, model, mask):
    """Each group of query heads is stored with the one key and the one value that it shares."""
    batch, length, _ = x.shape
    groups, size = model.num_query_groups, model.head_size
    queries = model.num_attention_heads // groups
    mixed = linear(x, weights, f"{name}.self_attention.linear_qkv").view(batch, length, groups, queries + 2, size)
    q, k, v = mixed.split([queries, 1, 1], dim=3)
    if model.qk_layernorm:  # Henry et al. 2020, arXiv 2010.04245, with the model's norm, as Qwen 3
        q = norm(q, weights, f"{name}.self_attention.q_layernorm", model)
        k = norm(k, weights, f"{name}.self_attention.k_layernorm", model)
    if model.position_embedding_type == "rope":
        q, k = rotate(q, model), rotate(k, model)
    scores = torch.einsum("bsgqd,btgd->bgqst", q, k.squeeze(3)) / math.sqrt(size)
    scores = scores.masked_fill(mask.unsqueeze(-3) if mask.dim() == 4 else mask, -torch.inf)
    context = torch.einsum("bgqst,btgd->bsgqd", scores.softmax(-1), v.squeeze(3))
    return linear(context.reshape(batch, length, -1), weights, f"{name}.self_attention.linear_proj")


def rotate(x, model):
    """Su et al. 2021, arXiv 2104.09864; dimension i turns with i + n / 2, as GPT-NeoX has it; [b, s, g, q, d]."""
    n = int(model.head_size * model.rotary_percent)
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequencies(n, model)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None, None, :]
    turned = torch.complex(x[..., : n // 2], x[..., n // 2 : n]) * turn
    return torch.cat((turned.real, turned.imag, x[..., n:]), -1)


def frequencies(n, model):
    """Return the angle of a step for n / 2 pairs; scaled as in Llama 3.1, by wavelengths (arXiv 2407.21783)."""
    angles = model.rotary_base ** (-torch.arange(0, n, 2, dtype=torch.float64) / n)
    if not model.use_rope_scaling:
        return angles
    length, factor = model.original_max_position_embeddings, model.rope_scaling_factor
    longest, shortest = length / model.rope_low_freq_factor, length / model.rope_high_freq_factor
    wavelengths = 2 * math.pi / angles
    smooth = (length / wavelengths - model.rope_low_freq_factor) / (
        model.rope_high_freq_factor - model.rope_low_freq_factor
    )
    between = (1 - smooth) * angles / factor + smooth * angles
    return torch.where(wavelengths > longest, angles / factor, torch.where(wavelengths < shortest, angles, between))
