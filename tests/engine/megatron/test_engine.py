"""The megatron engine in one process: steps, precision, accumulation, recomputation, evaluation."""

from __future__ import annotations

import gc
import weakref
from functools import cache

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from engine import tiny
from engine.layouts import GPT2, NEOX, OVERLAP_BOTH, ZERO1
from pretrain.engine.protocol import ScoredTokens

DROPOUT = ("model.hidden_dropout=0.1", "model.attention_dropout=0.1")
curve = cache(tiny.curve)


def assert_same(ours, theirs, rel=1e-5):
    assert [loss for loss, _ in ours] == pytest.approx([loss for loss, _ in theirs], rel=rel)
    assert [norm for _, norm in ours] == pytest.approx([norm for _, norm in theirs], rel=rel)


@pytest.mark.full
def test_it_learns():
    losses = [loss for loss, _ in curve(iterations=20)]
    assert losses[-1] < losses[0] - 0.3


def test_the_first_loss_is_that_of_uniform_predictions():
    loss, _ = curve(iterations=1)[0]
    assert loss == pytest.approx(torch.tensor(float(tiny.VOCAB_SIZE)).log().item(), rel=0.02)


@pytest.mark.parametrize("micro", [8, 2, 1])
def test_accumulated_micro_batches_are_one_batch(micro):
    assert_same(curve(f"train.micro_batch_size={micro}"), curve())


@pytest.mark.parametrize(
    "recompute",
    [
        ("granularity=selective",),
        ("granularity=full",),
        ("granularity=full", "num_layers=2"),
        ("granularity=full", "method=block", "num_layers=3"),
    ],
)
def test_recomputed_activations_are_the_same_with_their_dropout(recompute):
    again = curve(*DROPOUT, *(f"recompute.{setting}" for setting in recompute))
    assert_same(again, curve(*DROPOUT), rel=1e-6)


@pytest.mark.full
def test_dropout_is_drawn_and_depends_on_the_seed():
    plain, dropped, other = curve(), curve(*DROPOUT), curve(*DROPOUT, "train.seed=2")
    assert plain[0] != dropped[0] != other[0]
    assert curve.__wrapped__(*DROPOUT) == dropped  # trained again


@pytest.mark.parametrize("zero1", ["true", "false"])
def test_bf16_follows_fp32(zero1):
    ours = curve("precision.dtype=bf16", f"parallel.use_distributed_optimizer={zero1}", iterations=8)
    assert_same(ours, curve(iterations=8), rel=5e-3)


@pytest.mark.full
def test_bf16_without_fp32_reduction():
    assert_same(curve("precision.dtype=bf16", "precision.grad_reduce_in_fp32=false"), curve(), rel=1e-2)


@pytest.mark.parametrize("scaling", [("initial_loss_scale=1024",), ("loss_scale=256",)])
def test_fp16_follows_fp32(scaling):
    ours = curve("precision.dtype=fp16", *(f"precision.{setting}" for setting in scaling), iterations=8)
    assert_same(ours, curve(iterations=8), rel=5e-3)


def test_adam_adds_weight_decay_to_the_gradient_and_adamw_does_not():
    assert curve("optimizer.name=adam", "optimizer.weight_decay=0.1") != curve("optimizer.weight_decay=0.1")
    assert_same(curve("optimizer.name=adam", "optimizer.weight_decay=0"), curve("optimizer.weight_decay=0"))


def test_clipping_bounds_the_update_but_not_the_reported_norm():
    clipped, free = curve("optimizer.clip_grad=0.01"), curve("optimizer.clip_grad=0")
    assert clipped[0] == free[0]
    assert clipped[3] != free[3]


class TestLossScale:
    """Dynamic loss scale of fp16."""

    START = 2.0**40

    @pytest.fixture
    def engine(self):
        settings = (f"initial_loss_scale={self.START}", "hysteresis=2", "loss_scale_window=3", "dtype=fp16")
        with tiny.engine_of(tiny.tiny(*(f"precision.{setting}" for setting in settings))) as engine:
            yield engine

    def test_an_overflow_skips_the_step_and_halves_after_hysteresis(self, engine):
        tiny.take_step(engine, 0)
        assert engine.loss_scale == self.START
        tiny.take_step(engine, 1)
        assert engine.loss_scale == self.START / 2
        tiny.take_step(engine, 2)
        assert engine.loss_scale == self.START / 4

    def test_a_skipped_step_changes_nothing(self, engine):
        rate, weights = engine.learning_rate, engine.parameters_norm().item()
        step = tiny.take_step(engine, 0)
        assert step.skipped
        assert step.grad_norm is None
        assert torch.isfinite(step.loss)
        assert (engine.learning_rate, engine.parameters_norm().item()) == (rate, weights)

    @pytest.mark.full
    def test_it_finds_its_scale_and_grows_again(self, engine):
        steps = [(tiny.take_step(engine, iteration).skipped, engine.loss_scale) for iteration in range(40)]
        first = [skipped for skipped, _ in steps].index(False)
        found = steps[first][1]
        assert steps[first + 2][1] == 2 * found  # the third step in a row without overflow
        assert all(skipped for skipped, _ in steps[:first])

    def test_it_does_not_fall_below_the_minimum(self):
        settings = ("initial_loss_scale=1099511627776", "min_loss_scale=549755813888", "hysteresis=1", "dtype=fp16")
        with tiny.engine_of(tiny.tiny(*(f"precision.{setting}" for setting in settings))) as engine:
            for iteration in range(3):
                assert tiny.take_step(engine, iteration).skipped
            assert engine.loss_scale == 2.0**39

    def test_without_fp16_there_is_none(self):
        with tiny.engine_of(tiny.tiny()) as engine:
            assert engine.loss_scale == 1.0


def loss_in_float64():
    """Return the held-out loss per token from the model's logits."""
    recipe = tiny.tiny("train.micro_batch_size=8")
    with tiny.engine_of(recipe) as engine, torch.no_grad():
        (batch,) = tiny.micro_batches(recipe, -1)
        logits = engine.chunks[0](batch["tokens"], batch["position_ids"], None)[..., : tiny.VOCAB_SIZE]
        losses = torch.nn.functional.cross_entropy(logits.double().mT, batch["labels"], reduction="none")
        return ((losses * batch["loss_mask"]).sum() / batch["loss_mask"].sum()).item()


def step_by_token(*overrides):
    """Take a step on sequences of which 32 down to 4 tokens count; return loss, gradient norm, and loss afterwards."""
    recipe = tiny.tiny(*overrides)
    with tiny.engine_of(recipe) as engine:
        step = engine.train_step(tiny.micro_batches(recipe, -1), tiny.num_microbatches(recipe))
        return step.loss.item(), step.grad_norm.item(), tiny.held_out_loss(engine)


@pytest.mark.parametrize(
    "engine", [(), ("engine.name=deepspeed", "engine.zero.stage=0")], ids=["megatron", "deepspeed"]
)
def test_the_loss_by_token_does_not_depend_on_micro_batches_and_the_default_does(engine):
    whole = step_by_token("train.micro_batch_size=8", *engine)  # one micro-batch: the default is by token too
    by_token = step_by_token("train.micro_batch_size=2", "train.calculate_per_token_loss=true", *engine)
    assert by_token == pytest.approx(whole, rel=1e-5)
    assert step_by_token("train.micro_batch_size=2", *engine)[:2] != pytest.approx(whole[:2], rel=1e-3)


def test_fp16_scales_a_loss_by_token():
    scaled = ("precision.dtype=fp16", "precision.grad_reduce_in_fp32=true", "precision.initial_loss_scale=64")
    by_token = ("train.micro_batch_size=2", "train.calculate_per_token_loss=true")
    assert step_by_token(*by_token, *scaled) == pytest.approx(step_by_token(*by_token), rel=5e-3)


class TestEvaluation:
    """Held-out loss and logits."""

    @pytest.fixture(
        params=[
            (),
            (
                "parallel.use_distributed_optimizer=true",
                "parallel.overlap_grad_reduce=true",
                "parallel.overlap_param_gather=true",
            ),
        ],
        ids=["plain", "overlapped"],
    )
    def recipe(self, request):
        return tiny.tiny(*request.param)

    def test_the_loss_is_that_of_the_training_step(self, recipe):
        with tiny.engine_of(recipe) as engine:
            evaluated = engine.evaluate(tiny.micro_batches(recipe, 0), tiny.num_microbatches(recipe)).item()
            assert evaluated == pytest.approx(tiny.take_step(engine, 0).loss.item(), rel=1e-6)

    @pytest.mark.parametrize(
        "zero", [(), ("engine.name=deepspeed", "engine.zero.stage=0")], ids=["megatron", "deepspeed"]
    )
    def test_the_loss_is_that_of_all_tokens_for_any_micro_batch(self, zero):
        losses = []
        for micro in (1, 2, 8):
            with tiny.engine_of(tiny.tiny(f"train.micro_batch_size={micro}", *zero)) as engine:
                losses.append(tiny.held_out_loss(engine))
        assert losses == pytest.approx([loss_in_float64()] * 3, rel=1e-6)

    def test_without_a_token_there_is_no_loss(self, recipe):
        with tiny.engine_of(recipe) as engine:
            none = {"loss_mask": torch.zeros(4, 32), "num_tokens": torch.zeros(())}
            batches = [batch | none for batch in tiny.micro_batches(recipe, 0)]
            assert torch.isnan(engine.evaluate(iter(batches), 2))

    def test_dropout_is_off_in_evaluations(self):
        losses = []
        for overrides in ((), DROPOUT):
            with tiny.engine_of(tiny.tiny(*overrides)) as engine:
                losses.append(tiny.held_out_loss(engine))
        assert losses[0] == losses[1]

    def test_evaluations_and_prompts_leave_the_training_unchanged(self, recipe):
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"hidden_dropout": 0.1})})
        with tiny.engine_of(recipe) as engine:
            undisturbed = tiny.train(engine, 0, 4)
        with tiny.engine_of(recipe) as engine:
            disturbed = tiny.train(engine, 0, 2)
            tiny.held_out_loss(engine)
            engine.next_token_logits([1, 2, 3])
            engine.parameters_norm()
            disturbed += tiny.train(engine, 2, 4)
        assert disturbed == undisturbed

    def test_logits_give_the_loss(self, recipe):
        text = torch.arange(100, 133)
        batch = {
            "tokens": text[None, :-1],
            "labels": text[None, 1:],
            "loss_mask": torch.ones(1, 32),
            "position_ids": torch.arange(32)[None],
            "num_tokens": torch.tensor(32.0),
        }
        with tiny.engine_of(tiny.tiny("train.micro_batch_size=1", "train.global_batch_size=1")) as engine:
            loss = engine.evaluate(iter([batch]), 1).item()
            logits = torch.stack([engine.next_token_logits(text[:count].tolist()) for count in range(1, 33)])
        assert logits.shape == (32, tiny.VOCAB_SIZE)
        assert torch.nn.functional.cross_entropy(logits, text[1:]).item() == pytest.approx(loss, rel=1e-5)

    def test_log_likelihoods_are_sums_over_the_scored_tokens(self):
        with tiny.engine_of(tiny.tiny()) as engine:
            best = int(engine.next_token_logits(range(20)).argmax())
            samples = [*tiny.SCORED[1:], ScoredTokens((*range(20), best), 1), ScoredTokens((*range(20), best + 1), 1)]
            found = engine.log_likelihoods(samples)
            for sample, (likelihood, others) in zip(samples, found.tolist(), strict=True):
                rows = range(len(sample.tokens) - sample.scored, len(sample.tokens))
                logits = torch.stack([engine.next_token_logits(sample.tokens[:row]) for row in rows])
                tokens = torch.tensor([sample.tokens[row] for row in rows])
                assert likelihood == pytest.approx(-F.cross_entropy(logits, tokens, reduction="sum").item(), rel=1e-5)
                assert others == (logits.argmax(-1) != tokens).sum()
            assert found[-2:, 1].tolist() == [0, 1]

    def test_only_the_last_tokens_that_fit_count(self):
        with tiny.engine_of(tiny.tiny()) as engine:
            assert torch.equal(engine.next_token_logits(range(50)), engine.next_token_logits(range(18, 50)))
            assert not torch.equal(engine.next_token_logits(range(31)), engine.next_token_logits(range(1, 31)))


def test_the_parameters_norm_counts_every_weight_once():
    with tiny.engine_of(tiny.tiny()) as engine:
        weights = [parameter.detach().double().square().sum() for parameter in engine.chunks[0].parameters()]
        assert engine.parameters_norm().item() == pytest.approx(sum(weights).sqrt().item(), rel=1e-6)


def test_an_error_while_weights_are_whole_leaves_the_hooks_that_gather_them():
    with tiny.engine_of(tiny.tiny(*ZERO1, *OVERLAP_BOTH)) as engine:
        with pytest.raises(KeyboardInterrupt), engine.replicated_weights():
            raise KeyboardInterrupt
        assert all(chunk.remove_forward_pre_hook_handles for chunk in engine.chunks)


@pytest.mark.parametrize("model", [GPT2, NEOX], ids=["tied", "untied"])
@pytest.mark.parametrize("multiple", [1, 128, 1024])  # the padding that a tensor-parallel size gives, or its lack
def test_zeros_in_the_gradient_are_counted_without_the_padding_of_the_vocabulary(model, multiple):
    recipe = tiny.tiny(*model, "logging.log_num_zeros_in_grad=true", f"model.make_vocab_size_divisible_by={multiple}")
    with tiny.engine_of(recipe) as engine:
        step = tiny.take_step(engine, 0)
        unseen = 0 if model == GPT2 else 64 * _tokens_that_no_sample_has(recipe)
        assert (
            unseen <= step.metrics["num_zeros_in_grad"] < unseen + 64
        )  # less than a row of padding: some are zero by chance


@pytest.mark.full
def test_zeros_in_the_gradient_are_not_counted_unless_they_are_logged():
    with tiny.engine_of(tiny.tiny()) as engine:
        assert tiny.take_step(engine, 0).metrics["num_zeros_in_grad"] is None


def _tokens_that_no_sample_has(recipe):
    seen = torch.cat([batch["tokens"].flatten() for batch in tiny.micro_batches(recipe, 0)])
    return tiny.VOCAB_SIZE - len(seen.unique())


def test_padding_of_the_vocabulary_stays_zero():
    with tiny.engine_of(tiny.tiny()) as engine:
        tiny.train(engine, 0, 4)
        embedding = dict(engine.chunks[0].module.named_parameters())["embedding.word_embeddings.weight"]
        assert embedding[: tiny.VOCAB_SIZE].abs().min(dim=1).values.max() > 0
        assert not embedding[tiny.VOCAB_SIZE :].any()


@pytest.mark.parametrize(
    "overrides", [(), ZERO1, (*ZERO1, *OVERLAP_BOTH, *NEOX)], ids=["plain", "ZeRO-1", "overlapped, rope"]
)
def test_a_closed_engine_is_garbage_collected(overrides):
    """Autograd nodes hold megatron-core's hooks, which Python's garbage collector does not see; caches hold modules."""
    with tiny.engine_of(tiny.tiny(*overrides)) as engine:
        tiny.take_step(engine, 0)
        optimizer = weakref.ref(engine.optimizer)
        modules = [weakref.ref(module) for module in engine.chunks[0].modules()]
    del engine
    gc.collect()
    assert optimizer() is None
    gc.collect()  # only now the nodes, which its shards held
    assert [module() for module in modules if module() is not None] == []
