"""Orders that are computed: a shuffle, and turns by weight."""

from __future__ import annotations

import heapq
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.data.samples.native_samples import Permutation, WeightedInterleave

WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8)


class TestPermutation:
    @given(st.integers(1, 700), st.binary(min_size=1, max_size=64))
    def test_every_place_is_taken_once(self, size, key):
        shuffled = Permutation(size, key)
        assert sorted(map(shuffled, range(size))) == list(range(size))

    @given(st.integers(1, 2**62), st.data())
    def test_a_range_of_any_size_needs_no_memory(self, size, data):
        index = data.draw(st.integers(0, size - 1))
        assert 0 <= Permutation(size, b"key")(index) < size

    @pytest.mark.parametrize("index", [-1, 10, 11])
    def test_an_index_out_of_range_is_an_error(self, index):
        with pytest.raises(IndexError, match=r"range\(10\)"):
            Permutation(10, b"key")(index)

    def test_another_key_is_another_order(self):
        one, other = (list(map(Permutation(1000, key), range(1000))) for key in (b"one", b"other"))
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 10

    def test_it_is_a_shuffle(self):
        """Over many keys every index lands everywhere equally often, and so does its distance to its neighbour."""
        size, keys = 12, 6000
        places, distances = Counter(), Counter()
        for key in range(keys):
            shuffled = Permutation(size, key.to_bytes(4, "little"))
            places[shuffled(3)] += 1
            distances[(shuffled(4) - shuffled(3)) % size] += 1
        for counts, possible in ((places, range(size)), (distances, range(1, size))):
            expected = keys / len(possible)
            chi2 = sum((counts[value] - expected) ** 2 / expected for value in possible)
            assert sum(counts[value] for value in possible) == keys
            assert chi2 < 40  # 11 degrees of freedom: one of 28,000 true shuffles exceeds it, and the keys are fixed


class TestApportionment:
    @given(WEIGHTS)
    def test_turns_come_in_the_order_of_their_keys(self, weights):
        """Against all keys sorted: turn k of weight w has (2 k + 1) / w."""
        turns = WeightedInterleave(weights)
        number = 40
        keys = sorted(
            (Fraction(2 * k + 1) / Fraction(weight), i, k) for i, weight in enumerate(weights) for k in range(number)
        )
        assert [turns.at(position) for position in range(number)] == [(i, k) for _, i, k in keys[:number]]

    @pytest.mark.parametrize(
        "weights",
        [
            [1 + i % 7 for i in range(1000)],
            [float(i) for i in range(1, 1001)],  # turns of many datasets are due at once
            [1.0, 1 + 2**-52, 1 + 2**-51] * 100,  # rounded keys are equal, and true ones are not
            [1e300, 1.0, 1e-300],
        ],
    )
    def test_a_thousand_datasets_take_turns_in_exact_order(self, weights):
        """Against a heap of exact keys, from the begin and from far on."""
        turns, exact = WeightedInterleave(weights), [Fraction(weight) for weight in weights]
        for begin in (0, 3**7, 10**11 + 7):
            counts = turns.before(begin)
            assert sum(counts) == begin
            due = [
                (Fraction(2 * count + 1) / weight, i)
                for i, (count, weight) in enumerate(zip(counts, exact, strict=True))
            ]
            last = max(
                (Fraction(2 * n - 1) / weight, i) for i, (n, weight) in enumerate(zip(counts, exact, strict=True))
            )
            assert begin == 0 or last < min(due)
            heapq.heapify(due)
            for position in range(begin, begin + 40):
                _, i = due[0]
                assert turns.at(position) == (i, counts[i])
                counts[i] += 1
                heapq.heapreplace(due, (Fraction(2 * counts[i] + 1) / exact[i], i))

    @given(WEIGHTS, st.integers(0, 10**12))
    def test_any_position_follows_from_those_before_it(self, weights, position):
        turns = WeightedInterleave(weights)
        counts = turns.before(position)
        dataset, count = turns.at(position)
        assert sum(counts) == position
        assert count == counts[dataset]
        counts[dataset] += 1
        assert turns.before(position + 1) == counts

    @pytest.mark.parametrize("weights", [[1.0] * 300, [1000.0, *[1.0] * 300], [1.5**-i for i in range(300)]])
    def test_hundreds_of_datasets_get_their_shares(self, weights):
        """Where many are due at once, and one of them many times."""
        turns = WeightedInterleave(weights)
        for begin in (0, 149, 650, 10**9 + 150):
            counts = turns.before(begin)
            for position in range(begin, begin + 40):
                dataset, count = turns.at(position)
                assert count == counts[dataset]
                counts[dataset] += 1
            assert turns.before(begin + 40) == counts

    @given(WEIGHTS, st.integers(0, 10**12))
    def test_every_beginning_has_the_shares_of_the_weights(self, weights, position):
        total = sum(weights)
        for count, weight in zip(WeightedInterleave(weights).before(position), weights, strict=True):
            assert abs(count - position * weight / total) < len(weights) / 2 + 1e-3

    def test_the_sum_of_the_weights_does_not_matter(self):
        assert [WeightedInterleave([35, 65]).at(n) for n in range(50)] == [
            WeightedInterleave([70, 130]).at(n) for n in range(50)
        ]
