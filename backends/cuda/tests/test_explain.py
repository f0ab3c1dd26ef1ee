"""`pretrain explain` about devices that are not here, as a user sees it: what would be chosen, and what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pretrain.cli.main import main

RECIPES = Path(__file__).parents[3] / "recipes"
A100, H100, V100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB"


@pytest.fixture
def explain(monkeypatch, capsys):
    """A call of the command where, of the libraries, Triton and torch alone are installed."""
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda module: module == "triton")
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91900)

    def call(recipe, device, *overrides):
        words = ["explain", str(RECIPES / f"{recipe}.yml"), "--backend", "cuda", "--device", device]
        with pytest.raises(SystemExit) as ended:
            main([*words, *(word for override in overrides for word in ("--set", override))])
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    return call


def rows(out):
    """Return operation -> (kernel, kind); the lines below a row are indented."""
    table = [line.split() for line in out.partition("operation ")[2].splitlines()[1:] if not line.startswith(" ")]
    return {operation: (kernel, kind) for operation, kernel, kind, *_ in table}


def reasons(out):
    """Return kernel -> why it was not taken, without line breaks and versions."""
    text = re.sub(r"\n {6,}", " ", out)
    found = re.findall(r"^ {4}(\w+)(?: \([^)]*\))?(?: of .*?)? ((?:declined: |offered, ).*)$", text, re.MULTILINE)
    return dict(found)


def test_gpt3_on_an_a100(explain):
    code, out, err = explain("gpt3", A100)
    assert (code, err) == (0, "")
    assert out.startswith(f"device: available: {A100}, given by name and not looked for\n")
    assert rows(out) == {
        "collectives": ("nccl", "-"),
        "attention": ("sdpa_flash", "flash"),
        "norm": ("triton", "-"),
        "activation": ("triton", "-"),
        "bias_dropout_add": ("triton", "-"),
        "cross_entropy": ("triton", "-"),
        "linear": ("reference", "-"),
        "optimizer": ("fused", "-"),
    }


def test_reasons_name_the_missing_libraries(explain):
    _, out, _ = explain("gpt3", A100)
    missing = {name: reason for name, reason in reasons(out).items() if "is not installed" in reason}
    assert missing["flash_attn_2"] == (
        "declined: flash_attn.flash_attn_interface is not installed: pip install flash-attn --no-build-isolation"
    )
    assert missing["apex_fast"].startswith("declined: fast_layer_norm is not installed; apex")
    for module, flag in (
        ("fused_layer_norm_cuda", "--cuda_ext"),
        ("fused_weight_gradient_mlp_cuda", "--cuda_ext"),
        ("amp_C", "--cpp_ext --cuda_ext"),
    ):
        wanted = rf"{module} is\s+not\s+installed; apex.*?brings\s+it\s+when\s+it\s+is\s+built\s+with\s+{flag}"
        assert re.search(wanted, re.sub(r"\s+", " ", out)), module


def test_why_the_other_attention_kernels_are_not_taken(explain):
    _, out, _ = explain("gpt3", A100)
    why = reasons(out)
    assert why["sdpa_cudnn"] == "declined: dropout 0.1; only multiples of 1/16"
    assert why["flash_attn_3"] == "declined: compute capability 8.0; only 9.0"
    assert why["triangle_triton"] == why["sdpa_efficient"] == "offered, comes later in the order"


def test_without_dropout_a_hopper_gets_what_torch_itself_prefers_there(explain):
    _, out, _ = explain("neox20b", H100, "kernels.attention=auto")
    assert rows(out)["attention"] == ("sdpa_cudnn", "flash")
    assert rows(out)["rotary"] == ("triton", "-")
    why = reasons(out)
    assert why["flash_attn_3"].startswith("declined: flash_attn_interface is not installed: ")
    assert why["flash_attn_4"] == "declined: flash_attn.cute.interface is not installed: pip install flash-attn-4"


def test_the_recipe_names_the_triangle(explain):
    _, out, _ = explain("neox20b", A100)
    assert rows(out)["attention"] == ("triangle_triton", "triangle")
    assert reasons(out)["sdpa_flash"] == "offered, but the recipe names 'triangle'"


def test_a_v100_does_not_support_bf16(explain):
    code, out, _ = explain("gpt3", V100, "precision={dtype: bf16}")
    assert code == 0
    lines = out.splitlines()
    assert re.fullmatch(
        r"precision: backend 'cuda' \(pretrain-cuda .*\) does not support bfloat16 on this device\.", lines[1]
    )
    assert lines[2] == "Set precision.dtype to one of: fp32, fp16"
    assert rows(out)["attention"] == ("reference", "softmax")


def test_on_a_v100_in_fp16_the_reasons_name_ampere(explain):
    _, out, _ = explain("gpt3", V100)
    assert "precision:" not in out
    assert rows(out)["attention"] == ("sdpa_efficient", "flash")
    assert reasons(out)["sdpa_flash"] == "declined: compute capability 7.0; only 8.0 and later"
    assert "softmax" not in rows(out)  # the kernel has its own


def test_attention_with_all_weights_has_a_softmax_kernel(explain):
    _, out, _ = explain("gpt3", A100, "kernels.attention=softmax")
    assert rows(out)["softmax"] == ("triton", "-")
    wanted = "scaled_upper_triang_masked_softmax_cuda is not installed; apex .*? built with --cuda_ext"
    assert re.search(wanted, re.sub(r"\s+", " ", out))


def test_a_device_that_is_not_known_is_an_error_of_two_lines(explain):
    code, out, err = explain("gpt3", "Card 1")
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first == "backend 'cuda' knows no device 'Card 1'."
    assert second.startswith("It knows names that contain one of: ")
    assert "A100" in second
