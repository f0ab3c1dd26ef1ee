"""The check of updates by the moments around them, with torch's AdamW as the optimizer."""

import pytest
import torch

from pretrain.align.comparing.adam_update import TOLERANCE, Adam

SETTINGS = {"adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "weight_decay": 0.1}


class Kept:
    """Weights and moments after each step, as `Parameters` gives them."""

    def __init__(self, name, steps=3, **changed):
        torch.manual_seed(1)
        self.weights, self.moments = [], []
        self.gradients = torch.randn(steps, 6, 5)
        weight = torch.nn.Parameter(0.02 * torch.randn(6, 5))
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


def errors(kept, name, step=2):
    return Adam(optimizer={"name": name, **SETTINGS}, learning_rate=1e-3, step=step).errors(kept, "w")


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_right_update_has_no_error(name, step):
    kept = Kept(name)
    adam = Adam(optimizer={"name": name, **SETTINGS}, learning_rate=1e-3, step=step)

    assert max(adam.errors(kept, "w").values()) < TOLERANCE / 4
    torch.testing.assert_close(adam.gradient(kept, "w").float(), kept.gradients[step - 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"lr": 1.01e-3}, "update"),
        ({"betas": (0.9, 0.951)}, "second moment"),
        ({"weight_decay": 0.0}, "update"),
        ({"eps": 1e-2}, "update"),
    ],
)
def test_a_wrong_one_has(changed, what):
    assert errors(Kept("adamw", **changed), "adamw")[what] > TOLERANCE


def test_one_entry_that_was_not_updated_is_found():
    kept = Kept("adamw")
    kept.weights[2][3, 3] = kept.weights[1][3, 3]

    assert errors(kept, "adamw")["update"] > 0.1
