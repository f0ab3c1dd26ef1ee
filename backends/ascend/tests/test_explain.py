"""`pretrain explain` about chips that are not here, as a user sees it: two families, two tables, with reasons."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pretrain.cli.main import main

RECIPES = Path(__file__).parents[3] / "recipes"
A2, FIRST = "Ascend910B3", "Ascend910A"


@pytest.fixture
def explain(capsys):
    """A call of the command."""

    def call(recipe, device, *overrides):
        words = ["explain", str(RECIPES / f"{recipe}.yml"), "--backend", "ascend", "--device", device]
        with pytest.raises(SystemExit) as ended:
            main([*words, *(word for override in overrides for word in ("--set", override))])
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    return call


def rows(out):
    """Return operation -> kernel; the lines below a row are indented."""
    table = [line.split() for line in out.partition("operation ")[2].splitlines()[1:] if not line.startswith(" ")]
    return {operation: kernel for operation, kernel, *_ in table}


def reasons(out):
    """Return kernel -> why it was not taken, without line breaks and versions."""
    text = re.sub(r"\n {6,}", " ", out)
    found = re.findall(r"^ {4}(\w+)(?: \([^)]*\))?(?: of .*?)? ((?:declined: |offered, ).*)$", text, re.MULTILINE)
    return dict(found)


NEOX = {
    "collectives": "hccl",
    "attention": "triangle_fused",
    "norm": "layer_norm",
    "rotary": "rotary_mul",
    "activation": "npu_gelu",
    "bias_dropout_add": "reference",
    "cross_entropy": "reference",
    "linear": "reference",
    "optimizer": "fused",
}


def test_neox20b_on_an_a2_chip(explain):
    code, out, err = explain("neox20b", A2)
    assert (code, err) == (0, "")
    assert out.startswith(f"device: available: {A2}, given by name and not looked for\n")
    assert rows(out) == NEOX
    assert reasons(out)["fusion_attention"] == "offered, but the recipe names 'triangle'"
    assert (
        reasons(out)["cross_entropy_loss"]
        == "declined: tensor_parallel_size 2; only 1: the kernel does not sum over a group"
    )


def test_neox20b_on_a_chip_of_the_first_generation(explain):
    code, out, err = explain("neox20b", FIRST)
    assert (code, err) == (0, "")
    assert rows(out) == NEOX | {"rotary": "reference", "optimizer": "reference"}
    why = reasons(out)
    assert why["fusion_attention"] == why["sdpa"] == "declined: chip family 910A; only A2 and later"
    assert why["rotary_mul"] == "declined: rotary size 24 on chip family 910A; only 128"
    assert why["fused"] == "declined: chip family 910A; only A2 and later"


def test_without_a_named_kernel_a2_stores_no_weights_and_910a_computes_the_triangle(explain):
    assert rows(explain("neox20b", A2, "kernels.attention=auto")[1])["attention"] == "fusion_attention"
    assert rows(explain("neox20b", FIRST, "kernels.attention=auto")[1])["attention"] == "triangle_fused"
    assert rows(explain("gpt3", "Ascend910B")[1])["attention"] == "triangle_fused"


@pytest.mark.parametrize(("dtype", "name"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_910a_trains_in_fp16_alone(explain, dtype, name):
    code, out, _ = explain("gpt3", FIRST, f"precision={{dtype: {dtype}}}")
    assert code == 0
    lines = out.splitlines()
    assert re.fullmatch(
        rf"precision: backend 'ascend' \(pretrain-ascend .*\) does not support {name} on this device\.", lines[1]
    )
    assert lines[2] == "Set precision.dtype to one of: fp16"


def test_layers_are_not_compiled(explain):
    code, out, _ = explain("neox20b", A2, "kernels.compile=layer")
    assert code == 0
    lines = out.splitlines()
    assert re.fullmatch(
        r"compilation: backend 'ascend' \(pretrain-ascend .*\) does not support kernels.compile: .*triton-ascend.*",
        lines[1],
    )
    assert lines[2] == "Set kernels.compile to none."


def test_a_device_that_is_not_known_is_an_error_of_two_lines(explain):
    code, out, err = explain("gpt3", "Card 1")
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first == "backend 'ascend' knows no device 'Card 1'."
    assert second.startswith("It knows Ascend910PremiumA, ")
