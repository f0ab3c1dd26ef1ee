"""The check of updates by the moments around them, with torch's AdamW as the optimizer."""

import pytest
import torch

from pretrain.tools.align.comparing.adam_update import TOLERANCE, RecordedAdam

SETTINGS = {"adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "weight_decay": 0.1}


class Kept:
    """Weights and moments after each step, as `Parameters` gives them."""

    def __init__(self, name, steps=3, weight=None, **changed):
        torch.manual_seed(1)
        self.weights, self.moments = [], []
        weight = torch.nn.Parameter(0.02 * torch.randn(6, 5) if weight is None else weight.clone())
        self.gradients = torch.randn(steps, *weight.shape)
        kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
        options = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1} | changed
        optimizer = kind([weight], **options)
        self._keep(weight, None)
        for gradient in self.gradients:
            weight.grad = gradient.clone()
            optimizer.step()
            self._keep(weight, optimizer.state[weight])

    def _keep(self, weight, state):
        self.weights.append(weight.detach().clone().double())
        zeros = torch.zeros_like(self.weights[0])
        names = ("exp_avg", "exp_avg_sq")
        self.moments.append({name: state[name].clone().double() if state else zeros for name in names})

    def weight(self, name, step):
        return self.weights[step]

    def moment(self, which, name, step):
        return self.moments[step][which]


def adam_of(name, step, taken=None, rate=1e-3):
    return RecordedAdam(optimizer={"name": name, **SETTINGS}, learning_rate=rate, step=step, taken=taken or step)


def errors(kept, name, step=2, taken=None, rate=1e-3):
    """Return the part of what is explained, by name."""
    found = adam_of(name, step, taken, rate).errors(kept, "w")
    return {what: error / explained if explained else error for what, (error, explained) in found.items()}


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_right_update_has_no_error(name, step):
    kept = Kept(name)

    assert max(errors(kept, name, step).values()) < 1 / 4
    torch.testing.assert_close(
        adam_of(name, step).gradient(kept, "w").float(), kept.gradients[step - 1], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"lr": 1.01e-3}, "update"),
        ({"betas": (0.9, 0.951)}, "second moment"),
        ({"weight_decay": 0.0}, "update"),
        ({"weight_decay": 0.11}, "weight decay"),
        ({"eps": 1e-2}, "update"),
    ],
)
def test_a_wrong_one_has(changed, what):
    assert errors(Kept("adamw", **changed), "adamw")[what] > 1


RATES = (1e-3, 6e-4, 3e-4, 1e-4, 3e-5)


@pytest.mark.parametrize("rate", [*RATES, 1e-6, 1e-8])
@pytest.mark.parametrize("shape", [(1024,), (64, 64)], ids=["norm", "matrix"])
def test_equal_weights_which_round_alike_have_no_error(shape, rate):
    kept = Kept("adamw", weight=torch.ones(shape), lr=rate, weight_decay=0.1 * (len(shape) > 1))

    assert max(errors(kept, "adamw", step, rate=rate)["weight decay"] for step in (1, 2, 3)) < 1


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("decay", [0.09, 0.11])
def test_a_decay_that_is_a_tenth_off_is_found_in_an_ordinary_matrix(decay, rate):
    kept = Kept("adamw", weight=0.02 * torch.randn(64, 64), lr=rate, weight_decay=decay)

    assert min(errors(kept, "adamw", step, rate=rate)["weight decay"] for step in (1, 2, 3)) > 1


def test_a_step_that_was_skipped_is_none_of_adams():
    kept = Kept("adamw")
    for states in (kept.weights, kept.moments):
        states.insert(1, states[0])

    assert max(errors(kept, "adamw", step=2, taken=1).values()) < 1 / 4
    assert max(errors(kept, "adamw", step=3, taken=2).values()) < 1 / 4
    assert errors(kept, "adamw", step=3, taken=3)["update"] > 1


def test_one_entry_that_was_not_updated_is_found():
    kept = Kept("adamw")
    kept.weights[2][3, 3] = kept.weights[1][3, 3]

    assert errors(kept, "adamw")["update"] * TOLERANCE > 0.1
