"""Random numbers: the device's default generator governs all dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.cases import cases, run_with
from pretrain.conformance.comparing.default_generator import generator_of
from pretrain.conformance.examples import DTYPES, bias_dropout_add
from pretrain.conformance.kernels.attention_cases import each
from pretrain.conformance.kernels.attention_inputs import inputs
from pretrain.conformance.kernels.bias_dropout_add import example_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import Request

CASES = [*each(dropout=0.5), *cases(*(bias_dropout_add(dtype, hidden=48, dropout=0.5) for dtype in DTYPES))]


class TestRandom:
    """Dropout draws from the device's default generator, which can be saved, restored and forked."""

    operations = ("attention", "bias_dropout_add")

    @run_with(CASES)
    def test_a_restored_state_repeats_the_dropout(self, subject: Subject, kernel: Kernel, asked: Request) -> None:
        """A resumed run, or one that recomputes activations, has the same dropout masks."""
        draw, generator = _dropout(subject, kernel, asked), generator_of(subject)
        state = generator.get_rng_state()
        first, second = draw(), draw()
        assert not torch.equal(first, second), "two calls dropped the same: the generator does not advance"
        generator.set_rng_state(state)
        again = draw(), draw()
        assert torch.equal(first, again[0]), "the first call dropped something else after the state was restored"
        assert torch.equal(second, again[1]), "the second call dropped something else after the state was restored"

    @run_with(CASES)
    def test_a_seed_repeats_the_dropout(self, subject: Subject, kernel: Kernel, asked: Request) -> None:
        """Equal seeds give equal dropout masks, different seeds different ones."""
        draw, generator = _dropout(subject, kernel, asked), generator_of(subject)
        results = []
        for seed in (1, 1, 2):
            generator.manual_seed(seed)
            results.append(draw())
        assert torch.equal(results[0], results[1]), "the same seed dropped something else"
        assert not torch.equal(results[0], results[2]), "another seed dropped the same"

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
        assert torch.equal(second, expected[1]), "drawing inside a fork changed what is drawn outside"
        assert not torch.equal(inside, second), "the fork did not change what is drawn"

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
        assert torch.equal(first, second), "without a graph it drops something else than with one"
        assert torch.equal(generator.get_rng_state(), after), "without a graph it draws another number of times"


def _dropout(subject: Subject, kernel: Kernel, asked: Any) -> Callable[[], Tensor]:
    """Return a call of the kernel whose result shows what was dropped."""
    built = subject.build(kernel, asked)
    given = inputs(asked) if kernel.operation == "attention" else example_inputs(asked, (33, 2))
    placed = {name: x.to(subject.device).requires_grad_() for name, x in given.items()}
    return lambda: built(**placed)
