"""A model without an optimizer: the training's losses and logits, and no memory but for the weights."""

from __future__ import annotations

import gc
from contextlib import closing, contextmanager

import pytest
import torch

from engine import tiny
from engine.layouts import LLAMA, MASKED, NEOX
from pretrain.checkpoint import storage
from pretrain.engine import groups
from pretrain.engine.build import engine_parts
from pretrain.engine.megatron.forward_pass import ForwardOnlyEngine
from pretrain.plugins.host.manager import load


@contextmanager
def forward_only(recipe):
    """Build the model in a world of one."""
    plugins = load("cpu")
    with groups.joined(plugins.backend, 0, 1, timeout_minutes=1):
        engine = ForwardOnlyEngine(engine_parts(recipe, plugins, tiny.VOCAB_SIZE, torch.device("cpu"), notify=print))
        with closing(engine):
            yield engine


def storages():
    """Return the bytes of every floating-point storage that is alive, by its address."""
    gc.collect()
    tensors = [found for found in gc.get_objects() if type(found) in {torch.Tensor, torch.nn.Parameter}]
    return {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors
        if tensor.layout == torch.strided and tensor.is_floating_point() and tensor.device.type == "cpu"
    }


CASES = {
    "gpt2": (),
    "neox": NEOX,
    "llama, masked": (*LLAMA, *MASKED),
    "bf16": ("precision.dtype=bf16",),
    "DeepSpeed": ("engine={name: deepspeed, zero: {stage: 3}}",),
}


@pytest.mark.parametrize("name", CASES)
def test_it_has_the_losses_and_logits_of_the_engine_that_saved(name, tmp_path):
    recipe = tiny.tiny(*CASES[name])
    with tiny.engine_of(recipe) as engine:
        tiny.train(engine, 0, 2)
        expected = tiny.held_out_loss(engine), engine.next_token_logits(tiny.PROMPT)
        tiny.save(engine, tmp_path / "saved", 2)
    with forward_only(recipe) as engine:
        fresh = tiny.held_out_loss(engine)
        storage.load(engine, tmp_path / "saved", weights_only=True)
        assert tiny.held_out_loss(engine) == expected[0] != fresh
        assert torch.equal(engine.next_token_logits(tiny.PROMPT), expected[1])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_it_holds_weights_and_nothing_else_of_their_size(dtype):
    recipe = tiny.tiny(f"precision.dtype={dtype}", "model.hidden_size=128")
    before = storages()
    with forward_only(recipe) as engine:
        tiny.held_out_loss(engine)
        parameters = [parameter for chunk in engine.chunks for parameter in chunk.parameters()]
        assert {parameter.dtype for parameter in parameters} == {torch.float32 if dtype == "fp32" else torch.bfloat16}
        weights = sum(parameter.nbytes for parameter in parameters)
        new = sum(nbytes for address, nbytes in storages().items() if address not in before)
        assert weights <= new < 1.1 * weights
        assert not any(hasattr(parameter, "main_grad") or parameter.grad is not None for parameter in parameters)


def test_a_training_holds_more():
    """The measure of the test above sees gradients and moments."""
    before = storages()
    with tiny.engine_of(tiny.tiny("model.hidden_size=128")) as engine:
        tiny.train(engine, 0, 1)
        weights = sum(parameter.nbytes for chunk in engine.chunks for parameter in chunk.parameters())
        assert sum(nbytes for address, nbytes in storages().items() if address not in before) > 3.5 * weights
