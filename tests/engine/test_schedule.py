"""The learning rate over the training, by hand."""

from __future__ import annotations

from math import cos, pi, sqrt
from types import SimpleNamespace

import pytest

from engine.tiny import DATA
from pretrain.checkpoint.saved_schedule import restore_schedule
from pretrain.engine.schedule import build_schedule, schedule_steps
from pretrain.errors import CheckpointError
from pretrain.recipe import make_recipe

BATCH = 8


def recipe(*overrides, length="train.train_iters=20"):
    data = {**DATA, "schedule": {}, "train": {**DATA["train"], "train_iters": None}}
    return make_recipe(data, [length, *(f"schedule.{override}" for override in overrides)])


def optimizer():
    return SimpleNamespace(param_groups=[{"wd_mult": 1.0}, {"wd_mult": 0.0}])


def rates(recipe, iterations=22):
    """Return the learning rate of each iteration, the ones after the end included."""
    given = optimizer()
    schedule, seen = build_schedule(recipe, given), []
    for _ in range(iterations):
        seen.append(given.param_groups[0]["lr"])
        schedule.step(increment=BATCH)
    return seen


def expected(shape, *, warmup=4, decay=20, lr=1e-3, min_lr=1e-4):
    """Return the warm-up and then `shape`, a function of the fraction that is done."""
    up = [lr * iteration / warmup for iteration in range(warmup)]
    down = [
        min_lr + (lr - min_lr) * shape((iteration - warmup) / (decay - warmup)) for iteration in range(warmup, decay)
    ]
    return [*up, *down, min_lr, min_lr]


@pytest.mark.parametrize(
    ("style", "shape"), [("linear", lambda done: 1 - done), ("cosine", lambda done: 0.5 + 0.5 * cos(pi * done))]
)
def test_it_warms_up_and_falls_to_the_lowest_rate(style, shape):
    given = recipe(f"lr_decay_style={style}", "lr_warmup_iters=4", "min_lr=1e-4")
    assert rates(given) == pytest.approx(expected(shape))


def test_it_may_stay_constant():
    assert rates(recipe("lr_decay_style=constant", "lr_warmup_iters=2")) == pytest.approx([0, 5e-4] + 20 * [1e-3])


def test_it_may_fall_with_the_square_root():
    given = recipe("lr_decay_style=inverse-square-root", "lr_warmup_iters=4", "min_lr=5e-4")
    falling = [max(5e-4, 1e-3 * sqrt(4 / iteration)) for iteration in range(4, 21)]
    assert rates(given, 21) == pytest.approx([0, 2.5e-4, 5e-4, 7.5e-4, *falling])


@pytest.mark.parametrize(
    ("style", "shape"),
    [
        ("linear", lambda done: 1 - done),
        ("cosine", lambda done: 0.5 + 0.5 * cos(pi * done)),
        ("exponential", lambda done: 2 * 0.5**done - 1),
        ("minus_sqrt", lambda done: 1 - sqrt(done)),
    ],
)
def test_warmup_stable_decay(style, shape):
    given = recipe("lr_decay_style=WSD", "lr_warmup_iters=4", f"lr_wsd_decay_style={style}", "lr_wsd_decay_iters=5")
    last = [1e-3 * shape(done / 5) for done in range(5)]
    assert rates(given) == pytest.approx([0, 2.5e-4, 5e-4, 7.5e-4, *11 * [1e-3], *last, 0, 0], abs=1e-12)


def test_it_may_end_before_the_training():
    given = recipe("lr_decay_style=linear", "lr_decay_iters=10")
    assert rates(given, 13) == pytest.approx([1e-3 * (1 - done / 10) for done in range(10)] + 3 * [0], abs=1e-12)


@pytest.mark.parametrize(
    ("overrides", "length", "warmup", "decay"),
    [
        (("lr_warmup_iters=4",), "train.train_iters=20", 32, 160),
        (("lr_warmup_iters=4", "lr_decay_iters=15"), "train.train_iters=20", 32, 120),
        (("lr_warmup_fraction=0.1",), "train.train_iters=20", 16, 160),
        (("lr_warmup_fraction=0.25", "lr_decay_iters=10"), "train.train_iters=20", 20, 80),
        ((), "train.train_iters=20", 0, 160),
        (("lr_warmup_samples=30",), "train.train_samples=200", 30, 200),
        (("lr_warmup_samples=30", "lr_decay_samples=150"), "train.train_samples=200", 30, 150),
        (("lr_warmup_fraction=0.5",), "train.train_samples=200", 100, 200),
    ],
)
def test_lengths_are_counted_in_samples(overrides, length, warmup, decay):
    assert schedule_steps(recipe(*overrides, length=length)) == (warmup, decay, None)


@pytest.mark.parametrize(
    "overrides",
    [(), ("lr_warmup_iters=3",), ("lr_warmup_fraction=0.1",), ("lr_decay_style=WSD", "lr_wsd_decay_iters=3")],
)
def test_a_training_without_iterations_has_a_schedule_that_nothing_follows(overrides):
    given = optimizer()
    build_schedule(recipe(*overrides, length="train.train_iters=0"), given)
    assert 0 <= given.param_groups[0]["lr"] <= 1e-3


def test_biases_and_norms_have_no_weight_decay():
    given = optimizer()
    build_schedule(recipe(), given)
    assert [group["weight_decay"] for group in given.param_groups] == [0.01, 0.0]


class TestRestored:
    """A schedule that goes on from a checkpoint."""

    @pytest.fixture
    def saved(self):
        schedule = build_schedule(recipe("lr_decay_style=linear", "lr_warmup_iters=4"), optimizer())
        schedule.step(increment=10 * BATCH)
        return schedule.state_dict()

    def restore(self, saved, *overrides):
        given, loader = recipe(*overrides), optimizer()
        schedule = build_schedule(given, loader)
        for group in loader.param_groups:
            group |= {"max_lr": 1e-3, "min_lr": 0.0}  # as loading the optimizer's state leaves them
        notices = restore_schedule(schedule, saved, given)
        return loader.param_groups[0]["lr"], notices

    def test_it_goes_on(self, saved):
        rate, notices = self.restore(saved, "lr_decay_style=linear", "lr_warmup_iters=4")
        assert rate == pytest.approx(1e-3 * 10 / 16)
        assert notices == []

    @pytest.mark.parametrize(
        ("override", "named"),
        [
            ("lr_decay_iters=15", "the decay in samples 120 (checkpoint: 160)"),
            ("min_lr=1e-5", "schedule.min_lr 1e-05 (checkpoint: 0.0)"),
        ],
    )
    def test_differing_values_are_an_error_unless_the_recipe_chooses(self, saved, override, named):
        with pytest.raises(CheckpointError) as caught:
            self.restore(saved, "lr_decay_style=linear", "lr_warmup_iters=4", override)
        first, second = str(caught.value).splitlines()
        assert first.startswith(f"the schedule differs from the checkpoint's: {named}. ")
        assert "schedule.override_opt_param_scheduler: true" in second
        assert "schedule.use_checkpoint_opt_param_scheduler: true" in second

    def test_a_constant_rate_has_no_decay_that_could_differ(self):
        """A longer training, and another min_lr, which is never reached."""
        schedule = build_schedule(recipe("lr_decay_style=constant"), optimizer())
        schedule.step(increment=10 * BATCH)
        saved = schedule.state_dict() | {"lr_decay_steps": 88, "min_lr": 1e-5}
        assert self.restore(saved, "lr_decay_style=constant") == (pytest.approx(1e-3), [])
        with pytest.raises(CheckpointError, match=r"the decay in samples .*schedule.lr_decay_style"):
            self.restore(saved, "lr_decay_style=linear")

    def test_the_checkpoint_wins_if_the_recipe_says_so(self, saved):
        overrides = ("lr_decay_style=cosine", "lr_warmup_iters=4", "use_checkpoint_opt_param_scheduler=true")
        rate, notices = self.restore(saved, *overrides)
        assert rate == pytest.approx(1e-3 * 10 / 16)
        assert notices == [
            "schedule.lr_decay_style: using the checkpoint's linear, not the recipe's cosine",
        ]

    def test_the_recipe_wins_if_it_says_so(self, saved):
        overrides = ("lr_decay_style=linear", "min_lr=2e-4", "override_opt_param_scheduler=true")
        rate, notices = self.restore(saved, *overrides)
        assert rate == pytest.approx(2e-4 + 8e-4 * 10 / 20)
        assert "schedule.min_lr: using the recipe's 0.0002, not the checkpoint's 0.0" in notices
