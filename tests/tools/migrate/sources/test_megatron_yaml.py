"""YAML files for --yaml-cfg: their sections are flattened, and TransformerConfig's names become those of flags."""

from __future__ import annotations

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.sources.yaml_files import read_megatron_yaml

TEXT = """\
language_model:
  num_layers: 24
  activation_func: swiglu
  num_moe_experts: null
  layernorm_epsilon: 1.e-5
  timers: null
model_parallel:
  tensor_model_parallel_size: 2
lr: 2.5e-4
split: '99,1,0'
data_path: [0.3, a, 0.7, b]
"""


def read(text, **defined):
    return read_megatron_yaml("gpt.yaml", text, defined)


def test_sections_are_flattened():
    source = read(TEXT)
    assert source.kind == "megatron_yaml"
    assert {name: setting.value for name, setting in source.settings.items()} == {
        "num_layers": 24,
        "activation_func": "swiglu",
        "num_experts": None,
        "layernorm_epsilon": 1e-5,
        "tensor_model_parallel_size": 2,
        "lr": 2.5e-4,
        "split": "99,1,0",
        "data_path": [0.3, "a", 0.7, "b"],
    }
    experts = source.settings["num_experts"]
    assert (experts.written, str(experts.place)) == ("num_moe_experts", "gpt.yaml:4")


def test_every_setting_is_one_of_the_file():
    source = read("swiglu: True\nlanguage_model: {activation_func: gelu}")
    stated = {name: (setting.value, setting.written) for name, setting in source.settings.items()}
    assert stated == {"swiglu": (True, "swiglu"), "activation_func": ("gelu", "activation_func")}


def test_variables_are_filled_or_asked_for():
    text = "load: ${HERE}/x\nlanguage_model: {activation_func: squaredrelu}"
    assert read(text, HERE="a").settings["load"].value == "a/x"
    with pytest.raises(MigrateError, match=r"gpt.yaml:1: .*\n.*--define HERE="):
        read(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("lr: 1\nmodel_parallel: {lr: 2}", "gpt.yaml:2: lr is given in gpt.yaml:1 too"),
        ("language_model: {num_layers: 2}", "gpt.yaml has no activation_func"),
        ("language_model: {activation_func: relu}", "gpt.yaml:1: activation_func: relu"),
    ],
)
def test_it_refuses(text, what):
    with pytest.raises(MigrateError) as error:
        read(text)
    assert what in str(error.value)
