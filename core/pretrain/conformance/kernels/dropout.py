"""Dropout: its rate, and the device's default generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from pretrain.conformance.cases import run_with
from pretrain.conformance.example_calls import example_call
from pretrain.conformance.examples import DTYPES, bias_dropout_add
from pretrain.conformance.kernels.attention_inputs import each

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.conformance.cases import Case
    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import Request


CASES: list[Case | Request] = [
    *each(dropout=0.5),
    *(bias_dropout_add(dtype, hidden=48, dropout=0.5) for dtype in DTYPES),
]


class TestRandom:
    """Dropout draws from the device's default generator, which can be saved, restored and forked."""

    operations = ("attention", "bias_dropout_add")

    @run_with(CASES)
    def test_a_restored_state_repeats_the_dropout(self, subject: Subject, kernel: Kernel, asked: Request) -> None:
        """A resumed run, or one that recomputes activations, has the same dropout masks."""
        draw, generator = _dropout(subject, kernel, asked), generator_of(subject)
        state = generator.get_rng_state()
        first, second = draw(), draw()
        assert not torch.equal(first, second), "two calls dropped the same entries: the generator does not advance"
        generator.set_rng_state(state)
        again = draw(), draw()
        assert torch.equal(first, again[0]), "the first call dropped other entries after the state was restored"
        assert torch.equal(second, again[1]), "the second call dropped other entries after the state was restored"

    @run_with(CASES)
    def test_a_seed_repeats_the_dropout(self, subject: Subject, kernel: Kernel, asked: Request) -> None:
        """Equal seeds give equal dropout masks, different seeds different ones."""
        draw, generator = _dropout(subject, kernel, asked), generator_of(subject)
        results = []
        for seed in (1, 1, 2):
            generator.manual_seed(seed)
            results.append(draw())
        assert torch.equal(results[0], results[1]), "the same seed dropped other entries"
        assert not torch.equal(results[0], results[2]), "another seed dropped the same entries"

    @run_with(CASES)
    def test_a_fork_leaves_the_generator_alone(self, subject: Subject, kernel: Kernel, asked: Request) -> None:
        """Random numbers from a forked state, as each tensor-parallel rank has one, do not change the outer state."""
        draw, generator = _dropout(subject, kernel, asked), generator_of(subject)
        start = generator.get_rng_state()
        expected = draw(), draw()
        generator.set_rng_state(start)
        first = draw()
        outside = generator.get_rng_state()
        generator.manual_seed(1234)
        inside = draw()
        generator.set_rng_state(outside)
        second = draw()
        assert torch.equal(first, expected[0])
        assert torch.equal(second, expected[1]), "drawing inside a fork changed the numbers drawn outside"
        assert not torch.equal(inside, second), "the fork drew the same numbers as outside"

    @run_with(CASES)
    def test_recomputation_drops_the_same(self, subject: Subject, kernel: Kernel, asked: Request) -> None:
        """Activations that are recomputed: the first pass keeps no graph, the second one starts from the same state."""
        draw, generator = _dropout(subject, kernel, asked), generator_of(subject)
        state = generator.get_rng_state()
        with torch.no_grad():
            first = draw()
        after = generator.get_rng_state()
        generator.set_rng_state(state)
        second = draw()
        assert second.requires_grad, "the result of the second pass cannot be differentiated"
        assert torch.equal(first, second), "under no_grad the kernel drops other entries"
        assert torch.equal(generator.get_rng_state(), after), "under no_grad the kernel draws more or fewer numbers"


def _dropout(subject: Subject, kernel: Kernel, asked: Any) -> Callable[[], Tensor]:
    """Return a call of the kernel whose result shows what was dropped."""
    built = subject.build(kernel, asked)
    given = example_call(asked, 33).inputs
    placed = {name: x.to(subject.device).requires_grad_() for name, x in given.items()}
    return lambda: built(**placed)


def assert_dropout_rate(probability: float, kept: Tensor) -> None:
    """Fail unless the share of dropped entries is within six standard deviations of the probability.

    The draws are independent, so a correct kernel fails once in 500 million runs.
    """
    count = kept.numel()
    rate = 1 - kept.double().mean().item()
    deviation = (probability * (1 - probability) / count) ** 0.5
    assert abs(rate - probability) < 6 * deviation, f"{rate:.4f} of {count} entries dropped, expected {probability}"


def assert_independent(kept: Tensor) -> None:
    """Fail where two rows drop the same, of one head or of several: kept is [b, n, s, s], all seen or causal.

    Compared are the rows of the second half by the keys of the first, which a causal mask shows them all. With 48 of
    them, a quarter of which is dropped, two rows agree by chance once in 10^9.
    """
    half = kept.shape[-1] // 2
    rows = kept[:, :, -half:, :half].reshape(-1, half)
    different = torch.unique(rows, dim=0).shape[0]
    assert different == rows.shape[0], f"{rows.shape[0]} rows of weights have only {different} distinct dropout masks"


def generator_of(subject: Subject) -> Any:
    """Return the module with get_rng_state, set_rng_state and manual_seed of the device; fail where it lacks one."""
    device_type = subject.plugins.backend.device_type
    if device_type == "cpu":
        return torch  # torch.cpu has none
    module = torch.get_device_module(device_type)
    missing = [name for name in ("get_rng_state", "set_rng_state", "manual_seed") if not hasattr(module, name)]
    if missing:
        pytest.fail(f"torch.{device_type} has no {', '.join(missing)}")
    return module
