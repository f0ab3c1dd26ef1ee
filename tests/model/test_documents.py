"""Documents of one sequence train as sequences of their own, and as transformers packs them."""

from __future__ import annotations

import pytest
import torch
import transformers

from engine import tiny
from engine.layouts import LLAMA, MASKED, NEOX, PER_TOKEN, SHALLOW
from model.test_hugging_face import GPT_NEOX, SAME, megatrons_name
from pretrain.data.samples.sequence_pieces import ALONE

LENGTHS = (1, 10, 14, 7)
"""Of the documents of one sequence of 32 tokens."""

ONE_STEP = ("optimizer.clip_grad=0", "train.global_batch_size={0}", "train.micro_batch_size={0}")


def step_of(model, tokens, labels, mask, ends):
    """Take a step; return its loss, and the gradient of each weight by its name."""
    samples = len(tokens)
    overrides = [override.format(samples) for override in ONE_STEP]
    positions = torch.arange(32).expand(samples, -1)
    batch = {"tokens": tokens, "labels": labels, "loss_mask": mask, "position_ids": positions}
    with tiny.engine_of(tiny.tiny(*model, *overrides)) as engine:
        disturb(engine)
        loss = engine.train_step(iter([ALONE.part(batch, ends)]), 1).loss.item()
        named = engine.chunks[0].module.named_parameters()
        return loss, {name: parameter.main_grad.clone() for name, parameter in named}


def disturb(engine):
    """Change every weight, in the same way each time: biases start at zero and norms at one."""
    with torch.no_grad():
        for number, weight in enumerate(engine.chunks[0].module.parameters()):
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)), alpha=0.05)


def one_sequence():
    """Return tokens and labels of a sequence [1, 32], and the ends of its documents."""
    text = torch.randint(tiny.VOCAB_SIZE, (1, 33), generator=torch.Generator().manual_seed(5))
    return text[:, :-1], text[:, 1:].contiguous(), torch.tensor([0, *LENGTHS]).cumsum(0).int()


def assert_same(ours, theirs, tolerance):
    """Compare gradients, relative to the largest entry of each."""
    for name, gradient in theirs.items():
        error = (ours[name] - gradient).abs().max() / gradient.abs().max().clamp(min=1e-6)
        assert error < tolerance, f"{name}: {error}"


def test_a_document_is_a_sequence_of_its_own():
    """The same tokens, each document at the begin of a sequence whose rest has no loss, nor is seen."""
    tokens, labels, ends = one_sequence()
    model = (*LLAMA, *SHALLOW, *PER_TOKEN)
    loss, gradients = step_of((*model, *MASKED), tokens, labels, torch.ones(1, 32), ends)
    shape = len(LENGTHS), 32
    alone = {"tokens": torch.zeros(shape, dtype=torch.int64), "labels": torch.zeros(shape, dtype=torch.int64)}
    mask = torch.zeros(shape)
    for row, (begin, length) in enumerate(zip(ends.tolist(), LENGTHS, strict=False)):
        alone["tokens"][row, :length] = tokens[0, begin : begin + length]
        alone["labels"][row, :length] = labels[0, begin : begin + length]
        mask[row, :length] = 1
    expected, theirs = step_of(model, alone["tokens"], alone["labels"], mask, None)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert_same(gradients, theirs, 1e-5)  # fp32 sums of other orders, relative to the largest entry


def test_transformers_packing_gives_the_same():
    """transformers tells documents by positions that begin again, and makes a mask of the whole square."""
    tokens, labels, ends = one_sequence()
    model = (*SAME, *NEOX, "model.embedding_layernorm=false")
    theirs = transformers.AutoModelForCausalLM.from_config(GPT_NEOX, attn_implementation="sdpa")
    with tiny.engine_of(tiny.tiny(*model)) as engine, torch.no_grad():
        disturb(engine)
        ours = dict(engine.chunks[0].module.named_parameters())
        for name, weight in theirs.named_parameters():
            weight.copy_(ours[megatrons_name(name)])
    loss, gradients = step_of((*model, *MASKED), tokens, labels, torch.ones(1, 32), ends)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    logits = theirs(tokens, position_ids=positions, use_cache=False).logits
    expected = torch.nn.functional.cross_entropy(logits[0], labels[0])
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    assert_same(gradients, {megatrons_name(name): weight.grad for name, weight in theirs.named_parameters()}, 2e-5)
