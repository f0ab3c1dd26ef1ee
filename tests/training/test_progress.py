"""The global batch grows as Megatron-LM's does, and iterations and samples are counted by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator

from pretrain.training.progress import BatchSizes, Progress, total_iterations, total_samples


@st.composite
def growing(draw):
    """A batch that grows in up to 8 steps."""
    start, increment, steps = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 8))
    return BatchSizes(start + steps * increment, (start, increment, draw(st.integers(1, 500))))


@given(sizes=growing(), consumed=st.integers(0, 600))
def test_it_grows_as_in_megatron(sizes, consumed):
    start, increment, samples = sizes.rampup
    theirs = RampupBatchsizeNumMicroBatchesCalculator(sizes.final, 1, 1, False, 1, start, increment, samples)
    theirs.update(consumed, consistency_check=False)
    assert sizes.at(consumed) == theirs.get_current_global_batch_size()


def test_by_hand():
    sizes = BatchSizes(8, (2, 2, 30))
    assert [sizes.at(consumed) for consumed in (0, 9, 10, 19, 20, 29, 30, 31, 999)] == [2, 2, 4, 4, 6, 6, 8, 8, 8]


def samples_of(sizes, iterations):
    """The samples that so many steps from the start consume."""
    consumed = 0
    for _ in range(iterations):
        consumed += sizes.at(consumed)
    return consumed


@given(sizes=growing() | st.integers(1, 50).map(BatchSizes), samples=st.integers(0, 2000))
def test_iterations_are_the_most_that_the_samples_fill(sizes, samples):
    iterations = sizes.iterations(samples)
    assert samples_of(sizes, iterations) <= samples < samples_of(sizes, iterations + 1)


@given(sizes=growing() | st.integers(1, 50).map(BatchSizes), iterations=st.integers(0, 300))
def test_iterations_and_samples_are_each_others_inverse(sizes, iterations):
    assert sizes.iterations(samples_of(sizes, iterations)) == iterations


def test_a_constant_batch():
    sizes = BatchSizes(8)
    assert (sizes.at(0), sizes.at(10**9), sizes.iterations(81)) == (8, 8, 10)


BY_SAMPLES = ("train.train_iters=null", "train.train_samples=805")


def test_a_training_is_not_shorter_than_what_was_trained(make):
    taken = Progress(iteration=5, consumed_samples=40)
    assert total_iterations(make("train.train_iters=3"), taken) == 5
    assert total_iterations(make("train.train_iters=0"), taken) == 5
    assert (
        total_iterations(make("train.train_iters=0"), Progress())
        == total_samples(make("train.train_iters=0"), Progress())
        == 0
    )


def test_the_length_of_a_training(make):
    assert total_iterations(make(), Progress()) == 100
    assert total_iterations(make(*BY_SAMPLES), Progress()) == 100
    rampup = make(*BY_SAMPLES, "train.rampup_batch_size=[2, 2, 30]")
    sizes = BatchSizes.of(rampup)
    assert (sizes.final, sizes.rampup) == (8, (2, 2, 30))
    assert total_iterations(rampup, Progress()) == sizes.iterations(805) > 100


@pytest.mark.parametrize(
    ("batch", "overrides", "total"),
    [
        (4, BY_SAMPLES, 60 + (805 - 480) // 4),
        (16, BY_SAMPLES, 60 + (805 - 480) // 16),
        (8, (*BY_SAMPLES, "train.train_samples=400"), 60),  # shortened to less than was read
        (4, (), 100),
        (16, (), 100),
    ],
)
def test_with_another_batch_the_length_counts_from_what_was_read(make, batch, overrides, total):
    """A batch of 8 was read for 60 iterations."""
    recipe = make(f"train.global_batch_size={batch}", *overrides)
    progress = Progress(iteration=60, consumed_samples=480)
    assert total_iterations(recipe, progress) == total
    assert total_samples(recipe, progress) >= 480 + (total - 60) * batch


@given(before=growing() | st.integers(1, 50).map(BatchSizes), after=growing(), steps=st.integers(0, 99))
def test_the_steps_after_a_change_of_batch_are_the_most_that_the_samples_left_fill(before, after, steps):
    consumed = samples_of(before, steps)
    samples = consumed + 500
    for _ in range(after.iterations(samples, consumed)):
        consumed += after.at(consumed)
    assert consumed <= samples < consumed + after.at(consumed)


def test_the_samples_of_a_training(make):
    assert total_samples(make(), Progress()) == 800
    assert total_samples(make(*BY_SAMPLES), Progress()) == 805
    rampup = make(*BY_SAMPLES, "train.rampup_batch_size=[2, 2, 30]")
    assert total_samples(rampup, Progress(10, 40)) == 805  # as at the start


def test_a_training_that_became_shorter_keeps_its_index(make):
    progress = Progress(iteration=60, consumed_samples=480, order={"samples": 800, "digest": ""})
    assert total_samples(make("train.train_iters=70"), progress) == 800
    assert total_samples(make("train.global_batch_size=4"), progress) == 800
    assert total_samples(make("train.global_batch_size=16"), progress) == 480 + 40 * 16
    assert total_samples(make(*BY_SAMPLES, "train.train_samples=500"), progress) == 800
