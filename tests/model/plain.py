"""A GPT in plain torch, written from the papers: what pretrain.model must compute, in float64."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812  torch's own alias


def losses(weights, recipe, vocab_size, tokens, labels, mask=None, of_routers=None):
    """Return the loss of every token [b, s].

    Args:
        weights: name -> float64 tensor, named as megatron-core names them.
        recipe: the shape of the model.
        vocab_size: columns of the logits from here on do not exist.
        tokens: [b, s].
        labels: [b, s].
        mask: [b, 1, s, s], True where a token must not look; by default causal, with the model's window.
        of_routers: list to which each router's auxiliary losses are added.
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
        normed = norm(y, weights, f"{name}.pre_mlp_layernorm", model)
        if model.layers_with_experts[number]:
            fed = mixture(normed, weights, f"{name}.mlp", model, [] if of_routers is None else of_routers)
        else:
            fed = mlp(normed, weights, f"{name}.mlp", model)
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
    x = linear(x, weights, f"{name}.linear_fc1")
    if model.activation == "swiglu":  # Shazeer 2020, arXiv 2002.05202
        gate, up = x.chunk(2, -1)
        x = gate / (1 + (-gate).exp()) * up
    elif model.activation == "gelu_tanh":  # Hendrycks and Gimpel 2016, arXiv 1606.08415
        x = 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())
    else:
        x = 0.5 * x * (1 + (x / math.sqrt(2)).erf())
    return linear(x, weights, f"{name}.linear_fc2")


def mixture(x, weights, name, model, others):
    """Sum the experts of each token, one token after the other (Mixtral, arXiv 2401.04088; DeepSeek-V3, 2412.19437)."""
    logits = x @ weights[f"{name}.router.weight"].T
    others.extend(auxiliary(logits, model))
    output = torch.zeros_like(x)
    bias = weights.get(f"{name}.router.expert_bias")
    choices = [(p, *choice) for p in np.ndindex(x.shape[:2]) for choice in chosen(logits[p], bias, model)]
    for place, expert, weight in within_capacity(choices, model):
        one = {f"{n}.weight": weights[f"{name}.experts.{n}.weight"][expert] for n in ("linear_fc1", "linear_fc2")}
        own = {f"e.{key}": value for key, value in one.items()}
        output[place] = output[place] + weight * mlp(x[place], own, "e", model)
    if model.moe_shared_expert_intermediate_size:
        output = output + mlp(x, weights, f"{name}.shared_experts", model)
    return output


def chosen(logits, bias, model):
    """Return the experts of one token, each with its weight."""
    k, groups = model.moe_router_topk, model.moe_router_num_groups
    is_sigmoid = model.moe_router_score_function == "sigmoid"
    scores = logits.sigmoid() if is_sigmoid else logits.softmax(-1)
    ranked = (scores if bias is None else scores + bias).detach()
    if groups:
        best = ranked.view(groups, -1).sort(-1).values[:, -2:].sum(-1).sort(descending=True).indices
        kept = {int(group) for group in best[: model.moe_router_group_topk]}
        size = len(ranked) // groups
        ranked = torch.tensor([s if e // size in kept else -math.inf for e, s in enumerate(ranked.tolist())])
    experts = ranked.sort(descending=True, stable=True).indices[:k].tolist()
    divided = scores[experts].sum() if k > 1 and not model.moe_router_pre_softmax else 1.0
    return [(e, scores[e] / divided * model.moe_router_topk_scaling_factor) for e in experts]


def within_capacity(choices, model):
    """Return the (place, expert, weight) of tokens that fit (Lepikhin et al. 2020, arXiv 2006.16668), in their order.

    A micro-batch's tokens are in the order of their positions, then of its samples.
    """
    factor = model.moe_expert_capacity_factor
    if factor is None:
        return choices
    capacity = math.ceil(len(choices) / model.num_experts * factor)
    is_by_weight = model.moe_token_drop_policy == "probs"
    kept = []
    for expert in range(model.num_experts):
        own = sorted((choice for choice in choices if choice[1] == expert), key=lambda choice: choice[0][::-1])
        kept += (sorted(own, key=lambda choice: -choice[2].item()) if is_by_weight else own)[:capacity]
    return [choice for choice in choices if any(choice is each for each in kept)]


def auxiliary(logits, model):
    """Return the auxiliary loss (Fedus et al. 2021, arXiv 2101.03961; by sequence arXiv 2412.19437) and the z loss."""
    kind, k, experts = model.moe_router_load_balancing_type, model.moe_router_topk, model.num_experts
    if kind != "none":
        scores = logits.sigmoid() if model.moe_router_score_function == "sigmoid" else logits.softmax(-1)
        scores = scores / scores.sum(-1, keepdim=True)
        best = torch.zeros_like(scores).scatter(-1, scores.topk(k).indices, 1.0)
        if kind == "aux_loss":
            scores, best = scores.flatten(0, 1)[None], best.flatten(0, 1)[None]
        length = scores.shape[1]
        fractions, means = best.sum(1) * experts / (k * length), scores.mean(1)
        yield model.moe_aux_loss_coeff * (fractions * means).sum(-1).mean()
    if model.moe_z_loss_coeff is not None:
        yield model.moe_z_loss_coeff * logits.logsumexp(-1).square().mean()


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
