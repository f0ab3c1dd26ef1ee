"""Comparison of updates: gradients that differ as explained make no update that is said to differ."""

import pytest
import torch

from pretrain.tools.align.comparing.adam_update import RecordedAdam
from pretrain.tools.align.comparing.distance import Explained
from pretrain.tools.align.comparing.parameter_steps import Updates, compare_rates, gradient_errors
from pretrain.tools.align.recording.folder import ModulePlace

RATE = 1e-3
STEPS = 4


class Kept:
    """Weights and moments after each step of torch's Adam, as `Parameters` gives them."""

    def __init__(self, gradients, **changed):
        weight = torch.nn.Parameter(0.02 * torch.randn(32, 16, generator=torch.Generator().manual_seed(1)))
        options = {"lr": RATE, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1} | changed
        optimizer = torch.optim.AdamW([weight], **options)
        names, zeros = ("exp_avg", "exp_avg_sq"), torch.zeros(32, 16).double()
        self.weights, self.moments = [weight.detach().double()], [dict.fromkeys(names, zeros)]
        for gradient in gradients:
            weight.grad = gradient.float()
            optimizer.step()
            self.weights.append(weight.detach().double())
            self.moments.append({name: optimizer.state[weight][name].double() for name in names})

    def weight(self, name, step):
        return self.weights[step]

    def moment(self, which, name, step):
        return self.moments[step][which]


def adam_of(step, rate=RATE):
    optimizer = {"name": "adamw", "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "weight_decay": 0.1}
    return RecordedAdam(optimizer=optimizer, learning_rate=rate, step=step, taken=step)


def compared(gradients, dtype, rates=(RATE, RATE), recorded=(RATE, RATE)):
    """Compare the updates of two trainings with these gradients and learning rates, step by step."""
    states = [Kept(each, lr=rate) for each, rate in zip(gradients, rates, strict=True)]
    updates, explained = Updates(states), Explained(dtype=dtype, layers=4)
    for step in range(1, STEPS + 1):
        adams = [adam_of(step, rate) for rate in recorded]
        errors = gradient_errors(*(each[step - 1] for each in gradients), 0.0, explained)
        yield updates.compare("w", ModulePlace(1, "m"), 0, adams, errors, explained.of_norm)


def gradients_of(scale, dtype):
    """Return gradients of both sides that differ as much as is explained; in some entries all is rounding error."""
    generator = torch.Generator().manual_seed(2)
    gradients = scale * torch.randn(STEPS, 32, 16, generator=generator).double()
    gradients[1:] = gradients[:1] * torch.tensor([-1.0, 0.1, 1.0]).view(-1, 1, 1)  # means cancel
    gradients[:, :, :4] *= 1e-3
    error = Explained(dtype=dtype, layers=4).of_gradient * gradients.square().mean((1, 2), keepdim=True).sqrt()
    return gradients, gradients + error * torch.randn(gradients.shape, generator=generator)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 3e-8], ids=["large", "usual", "near epsilon"])
def test_gradients_that_differ_as_explained_explain_the_updates_of_all_steps(scale, dtype):
    found = list(compared(gradients_of(scale, dtype), dtype))

    assert all(not each.differs for each in found)
    assert 0 < found[0].entries[0] <= found[0].entries[1] == 32 * 16


def test_an_update_that_its_gradients_do_not_explain_differs():
    gradients = 1 + torch.rand(STEPS, 32, 16, generator=torch.Generator().manual_seed(2)).double()

    assert not any(each.differs for each in compared((gradients, gradients), "fp32"))
    assert all(each.differs for each in compared((gradients, gradients), "fp32", (RATE, 1.001 * RATE)))


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("factor", [0.0, 3, 10, 1000])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_an_update_that_is_far_too_large_does_not_explain_itself(dtype, factor, is_first, is_recorded):
    gradients = 1 + torch.rand(STEPS, 32, 16, generator=torch.Generator().manual_seed(2)).double()
    rates = (factor * RATE, RATE) if is_first else (RATE, factor * RATE)

    found = list(compared((gradients, gradients), dtype, rates, rates if is_recorded else (RATE, RATE)))

    assert all(each.differs and each.entries == (32 * 16, 32 * 16) for each in found)


@pytest.mark.parametrize(
    ("rates", "differs"),
    [((RATE, RATE), False), ((RATE, 1.001 * RATE), True), ((0.0, RATE), True), ((0.0, 0.0), False)],
)
def test_recorded_learning_rates_are_compared(rates, differs):
    for sides in (rates, rates[::-1]):
        found = compare_rates([adam_of(2, rate) for rate in sides])

        assert (found.step, found.phase, found.what, found.differs) == (2, "update", "learning rate", differs)


def test_a_gradient_that_is_all_rounding_error_has_an_update_that_is_not_compared():
    updates = Updates((Kept(torch.zeros(1, 32, 16)),) * 2)
    explained, adams = Explained(dtype="bf16", layers=4), (adam_of(1), adam_of(1))
    errors = gradient_errors(*[torch.zeros(32, 16).double()] * 2, 1e-3, explained)

    assert updates.compare("w", ModulePlace(1, "m"), 0, adams, errors, explained.of_norm) is None
    assert updates.not_compared == ["the update of w in step 1: all of the gradient is rounding error"]
