"""Loss and gradients of the whole model against plain torch in float64."""

from __future__ import annotations

import pytest
import torch

from engine import tiny
from engine.expert_layouts import BY_SEQUENCE, CAPACITY, MIXTRAL
from engine.layouts import LLAMA, NEOX, QWEN, QWEN3, WINDOW
from model import plain
from pretrain.conformance.compared_part import mask_of_documents
from pretrain.plugins.signatures import Documents

SMALL = ("model.num_layers=3", "train.global_batch_size=4", "optimizer.clip_grad=0")
MODELS = {
    "GPT-2": (),
    "GPT-2, tanh": (
        "model.activation=gelu_tanh",
        "model.layernorm_epsilon=1e-3",
        "model.make_vocab_size_divisible_by=1",
    ),
    "GPT-3, layer scaling": ("model.apply_query_key_layer_scaling=true",),
    "NeoX": NEOX,
    "NeoX, whole heads": (
        *NEOX,
        "model.rotary_percent=1.0",
        "model.rotary_base=500",
        "model.embedding_layernorm=false",
    ),
    "Llama": LLAMA,
    "Llama, wide heads": (*LLAMA, "model.kv_channels=32", "model.num_query_groups=1", "model.ffn_hidden_size=96"),
    "Qwen": (*QWEN, "model.rope_scaling_factor=32", "model.rope_low_freq_factor=2", "model.rope_high_freq_factor=5"),
    "Qwen, parallel residual": (*QWEN, "model.parallel_residual=true"),
    "Qwen 3": QWEN3,
    "QK layer norm": ("model.qk_layernorm=true", "model.position_embedding_type=rope"),
    "window": (*LLAMA, *WINDOW),
    "window, softmax kernel": (*WINDOW, "kernels.attention=softmax"),
    "window, triangle kernel": (*WINDOW, "kernels.attention=triangle", "kernels.triangle_block_size=8"),
    "window as long as the sequence": ("model.window_size=32",),
    "Mixtral": (*MIXTRAL, "train.micro_batch_size=4"),
    "Mixtral, softmax first, one expert": (
        *MIXTRAL,
        "model.moe_router_pre_softmax=true",
        "model.moe_router_topk=1",
        "model.moe_router_load_balancing_type=aux_loss",
        "model.moe_aux_loss_coeff=0.5",
        "train.micro_batch_size=4",
    ),
    "Mixtral, capacity": (*MIXTRAL, *CAPACITY, "train.micro_batch_size=4"),
    "Mixtral, capacity, the first": (
        *MIXTRAL,
        *CAPACITY,
        "model.moe_token_drop_policy=position",
        "train.micro_batch_size=4",
    ),
    "DeepSeek-V3's router": (*BY_SEQUENCE, "model.moe_aux_loss_coeff=0.5", "train.micro_batch_size=4"),
    "no biases": ("model.add_bias_linear=false",),
    "embedding norm": ("model.embedding_layernorm=true", "model.normalization=RMSNorm"),
    "documents apart": ("data.reset_attention_mask=true",),
    "softmax kernel": ("kernels.attention=softmax",),
    "triangle kernel": ("kernels.attention=triangle", "kernels.triangle_block_size=8"),
}


def disturb(engine):
    """Perturb every weight, because biases start at zero and norms at one; return them in float64 by name."""
    generator = torch.Generator().manual_seed(11)
    named = dict(engine.chunks[0].module.named_parameters())
    biases = {name: buffer for name, buffer in engine.chunks[0].module.named_buffers() if name.endswith("expert_bias")}
    with torch.no_grad():
        for parameter in (*named.values(), *biases.values()):
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    weights = {name: parameter.detach().double().requires_grad_() for name, parameter in named.items()}
    return named, weights, {name: bias.double() for name, bias in biases.items()}


def _mask(documents):
    if documents is None:
        return None
    return mask_of_documents(Documents.of(documents[0]), batch=4)


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_those_of_plain_torch(name):
    recipe = tiny.tiny(*SMALL, *MODELS[name])
    with tiny.engine_of(recipe) as engine:
        named, weights, biases = disturb(engine)
        (batch,) = tiny.micro_batches(recipe, 0)
        step = engine.train_step(iter([batch]), 1)
    of_routers = []
    inputs = (batch["tokens"], batch["labels"], _mask(batch["documents"]))
    losses = plain.losses(weights | biases, recipe, tiny.VOCAB_SIZE, *inputs, of_routers)
    expected = (losses * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
    (expected + sum(of_routers)).backward()
    assert step.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    gradients = {name: weight.grad for name, weight in weights.items()}
    for parameter_name, gradient in gradients.items():
        # As precise as fp32 is: relative to the largest entry.
        torch.testing.assert_close(
            named[parameter_name].main_grad.double(),
            gradient,
            rtol=0,
            atol=1e-5 * gradient.abs().max().item(),
            msg=lambda message, of=parameter_name: f"{of}: {message}",
        )
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
    assert step.grad_norm.item() == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("model", [(), NEOX], ids=["tied", "untied"])
def test_the_padding_of_the_vocabulary_has_no_influence(model):
    def train(multiple):
        with tiny.engine_of(tiny.tiny(*SMALL, *model, f"model.make_vocab_size_divisible_by={multiple}")) as engine:
            return tiny.train(engine, 0, 3)

    none, some = train(1), train(512)
    assert some == [pytest.approx(step, rel=1e-6) for step in none]
