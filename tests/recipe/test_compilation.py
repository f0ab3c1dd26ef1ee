"""kernels.compile: its effect, and the settings that exclude it."""

from __future__ import annotations

import pytest

LAYER = "kernels.compile=layer"
PLAIN = ("model.hidden_dropout=0", "model.attention_dropout=0")


def test_compiled_operations_use_the_reference(make):
    chosen = make(LAYER, *PLAIN, "kernels.attention=flash").kernels.chosen()
    assert {operation for operation, kernel in chosen.items() if kernel == "reference"} == {
        *("norm", "rotary", "activation", "bias_dropout_add")
    }
    assert chosen["attention"] == "flash"
    assert chosen["linear"] == chosen["optimizer"] == "auto"


def test_without_compilation_every_kernel_is_the_recipes(make):
    chosen = make("kernels.norm=mine").kernels.chosen()
    assert chosen.pop("norm") == "mine"
    assert set(chosen.values()) == {"auto"}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["engine.name=deepspeed"], "kernels.compile: layer needs engine.name: megatron; with deepspeed it was not"),
        (["train.deterministic_mode=true"], "kernels.compile: layer does not go with train.deterministic_mode"),
        (
            [
                "parallel={use_distributed_optimizer: true, overlap_grad_reduce: true, overlap_param_gather: true}",
            ],
            "kernels.compile: layer does not go with parallel.overlap_param_gather",
        ),
        (["model.hidden_dropout=0.1"], "kernels.compile: layer needs model.hidden_dropout: 0."),
        (["model.attention_dropout=0.1"], "kernels.compile: layer needs model.attention_dropout: 0."),
        (["kernels.norm=triton"], "kernels.norm: must be auto or reference with kernels.compile: layer."),
    ],
)
def test_untested_combinations_are_refused(refusal, overrides, expected):
    assert expected in refusal(LAYER, *PLAIN, *overrides)
