"""Random numbers: the device's default generator governs all dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from pretrain.testing import examples
from pretrain.testing.comparison import random as example

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.testing.subject import Kernel, Subject


class TestRandom:
    """Dropout draws from the device's default generator, which can be saved, restored and forked."""

    operations = ("attention", "bias_dropout_add")

    def test_a_restored_state_repeats_the_dropout(self, subject: Subject, kernel: Kernel) -> None:
        """A run that is resumed, or recomputes its activations, drops what it dropped before."""
        draw, generator = _dropout(subject, kernel), _generator(subject)
        state = generator.get_rng_state()
        first, second = draw(), draw()
        assert not torch.equal(first, second), "two calls dropped the same: the generator does not advance"
        generator.set_rng_state(state)
        again = draw(), draw()
        assert torch.equal(first, again[0]), "the first call dropped something else after the state was restored"
        assert torch.equal(second, again[1]), "the second call dropped something else after the state was restored"

    def test_a_seed_repeats_the_dropout(self, subject: Subject, kernel: Kernel) -> None:
        """Equal seeds, equal dropout; other seeds, other dropout."""
        draw, generator = _dropout(subject, kernel), _generator(subject)
        results = []
        for seed in (1, 1, 2):
            generator.manual_seed(seed)
            results.append(draw())
        assert torch.equal(results[0], results[1]), "the same seed dropped something else"
        assert not torch.equal(results[0], results[2]), "another seed dropped the same"

    def test_a_fork_leaves_the_generator_alone(self, subject: Subject, kernel: Kernel) -> None:
        """What is drawn from another state in between, as for each tensor-parallel rank, changes nothing outside."""
        draw, generator = _dropout(subject, kernel), _generator(subject)
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


def _dropout(subject: Subject, kernel: Kernel) -> Callable[[], Tensor]:
    """Return a call of the kernel whose result shows what was dropped."""
    shapes: list[tuple[int, ...]]
    if kernel.operation == "attention":
        built = subject.build(kernel, examples.attention(dropout=0.5))
        shapes = [(33, 2, 4, 16)] * 3
    else:
        built = subject.build(kernel, examples.bias_dropout_add(dropout=0.5))
        shapes = [(33, 2, 48), (48,), (33, 2, 48)]
    inputs = [example(*shape, dtype=torch.float32).to(subject.device) for shape in shapes]
    return lambda: built(*inputs)


def _generator(subject: Subject) -> Any:
    """Return the module with get_rng_state, set_rng_state and manual_seed of the device."""
    device_type = subject.plugins.backend.device_type
    if device_type == "cpu":
        return torch  # torch.cpu has none
    module = torch.get_device_module(device_type)
    missing = [name for name in ("get_rng_state", "set_rng_state", "manual_seed") if not hasattr(module, name)]
    if missing:
        pytest.fail(f"torch.{device_type} has no {', '.join(missing)}")
    return module
