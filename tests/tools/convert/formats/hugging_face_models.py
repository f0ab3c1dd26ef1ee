"""Tiny models of transformers with random weights, and what is done with them."""

from __future__ import annotations

from dataclasses import replace

import torch
import transformers

from engine import tiny
from pretrain.tools.convert.formats import hugging_face_writer
from pretrain.tools.convert.model_weights import FileLayout

TOKENS = list(range(40, 65))
VOCAB, LAYERS, HIDDEN, HEADS, FFN, POSITIONS = tiny.VOCAB_SIZE, 2, 64, 4, 96, 32
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": FFN,
    "max_position_embeddings": POSITIONS,
}
GROUPED = SHAPE | {"num_key_value_heads": 2}
EXPERTS = GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 24}
GPT2 = {"vocab_size": VOCAB, "n_positions": POSITIONS, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS}
NO_DROPOUT = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}


def random_model(config):
    """Return a model in fp32 whose biases and norms are random, too."""
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    biases = [bias for name, bias in model.named_buffers() if name.endswith("e_score_correction_bias")]
    with torch.no_grad():
        for weight in (*model.parameters(), *biases):
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.05)
    return model


def logits_of(model):
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0, -1]


def written(weights, folder):
    """Write a target as a conversion does."""
    target = hugging_face_writer.write(weights, FileLayout())
    folder.mkdir(exist_ok=True)
    for file in target.files:
        file.write(folder / file.name, lambda size: None)
    for name, content in target.small.items():
        (folder / name).write_bytes(content)
    target.finish(folder, {})
    return folder


def counted(weights):
    """Return the weights, and the number of rows of each that are read from now on."""
    counts = dict.fromkeys(weights.tensors, 0)

    def counting(name, tensor):
        def rows(begin, end):
            counts[name] += end - begin
            return tensor.rows(begin, end)

        return replace(tensor, rows=rows)

    return replace(weights, tensors={name: counting(name, each) for name, each in weights.tensors.items()}), counts


def require_equal(ours, others):
    """Compare two models' tensors bit by bit."""
    assert ours.keys() == others.keys()
    for name, tensor in ours.items():
        first, second = tensor.whole().flatten(), others[name].whole().flatten()
        assert (first.dtype, tensor.shape) == (second.dtype, others[name].shape), name
        assert torch.equal(first.view(torch.uint8), second.view(torch.uint8)), name
