"""The global batch grows as Megatron-LM's does, and iterations and samples are counted by it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator

from pretrain.training.batch_sizes import BatchSizes, total_iterations


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


@given(sizes=growing(), iterations=st.integers(0, 300))
def test_samples_are_the_sum_of_the_steps(sizes, iterations):
    consumed = 0
    for _ in range(iterations):
        consumed += sizes.at(consumed)
    assert sizes.samples(iterations) == consumed


@given(sizes=growing() | st.integers(1, 50).map(BatchSizes), samples=st.integers(0, 2000))
def test_iterations_are_the_most_that_the_samples_fill(sizes, samples):
    iterations = sizes.iterations(samples)
    assert sizes.samples(iterations) <= samples < sizes.samples(iterations + 1)


@given(sizes=growing() | st.integers(1, 50).map(BatchSizes), iterations=st.integers(0, 300))
def test_iterations_and_samples_are_each_others_inverse(sizes, iterations):
    assert sizes.iterations(sizes.samples(iterations)) == iterations


def test_a_constant_batch():
    sizes = BatchSizes(8)
    assert (sizes.at(0), sizes.at(10**9), sizes.iterations(81), sizes.samples(10)) == (8, 8, 10, 80)


def test_the_length_of_a_training(make):
    assert total_iterations(make()) == 100
    by_samples = ("train.train_iters=null", "train.train_samples=805")
    assert total_iterations(make(*by_samples)) == 100
    rampup = make(*by_samples, "train.rampup_batch_size=[2, 2, 30]")
    sizes = BatchSizes.of(rampup)
    assert (sizes.final, sizes.rampup) == (8, (2, 2, 30))
    assert total_iterations(rampup) == sizes.iterations(805) > 100
