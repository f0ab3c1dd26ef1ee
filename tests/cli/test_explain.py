"""`pretrain explain`: which kernel each operation gets, and why not the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from plugins.fake_site import reference, site
from pretrain.cli.explain import command
from pretrain.errors import BackendError, KernelError, RecipeError
from pretrain.plugins.host.manager import KERNEL_HOOKS

__all__ = ["reference", "site"]

RECIPE = str(Path(__file__).parents[2] / "recipes" / "gpt3.yml")
OPERATIONS = {hook.removeprefix("pretrain_") for hook in KERNEL_HOOKS} - {"attention"}
SIMPLE = "\n".join(
    f"@hookimpl\ndef pretrain_{operation}(request):\n    return Offer(name='plain', build=None.__class__)\n"
    for operation in sorted(OPERATIONS)
)
ATTENTION = """
@hookimpl
def pretrain_attention(request):
    return [
        Decline(name="tiled", kind="flash", reason=f"head size {request.head_size}, at most 64"),
        Offer(name="other", kind="flash", build=lambda built: 1 / 0),
        Offer(name="blocks", kind="triangle", build=lambda built: 1 / 0),
    ]
"""


def explain(*arguments: str):
    return CliRunner().invoke(command, [RECIPE, "--backend", "fake", *arguments])


def text_of(result) -> str:
    assert result.exit_code == 0, result.exception
    return " ".join(result.output.split())


@pytest.fixture
def backend(site, reference):
    site.backend("fake", SIMPLE + ATTENTION)
    return site


def test_every_operation_of_the_recipe_is_explained_and_nothing_is_built(backend):
    text = text_of(explain())
    assert "device: available: two of them" in text
    assert "kernels of backend 'fake' (pretrain-fake 1.0)" in text
    assert "attention other flash pretrain-fake 1.0" in text
    left_out = {"rotary", "grouped_linear", "moe_permute", "router"}
    for operation in OPERATIONS - left_out - {"softmax"}:
        assert f"{operation} plain" in text
    assert not [operation for operation in left_out if operation in text]
    assert "softmax plain" not in text  # flash attention has its own


def test_every_reason_against_the_others_is_shown(backend):
    text = text_of(explain("--set", "kernels.attention=flash"))
    assert "tiled (flash) declined: head size 128, at most 64" in text
    assert "blocks (triangle) offered, but the recipe names 'flash'" in text
    assert "reference of pretrain 0 offered, the reference comes last" in text


def test_overrides_change_what_is_asked_and_chosen(backend):
    text = text_of(explain("--set", "kernels.attention=triangle", "--set", "model.seq_length=1024"))
    assert "attention blocks triangle" in text
    assert "seq_length 1024" in text


def test_a_tokenizer_that_is_not_there_is_replaced_by_a_stated_number(backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = text_of(explain())
    assert "tokenizer: data/gpt2-vocab.json, data/gpt2-merges.txt not found; counting with 50257 entries" in text
    assert "vocab_size 50257, padded_vocab_size 51200" in text


def test_the_tokenizer_is_counted_where_it_is_there(backend):
    text = text_of(explain("--set", "tokenizer={type: bytes}"))
    assert "tokenizer:" not in text
    assert "vocab_size 257," in text


def test_a_named_kernel_that_declines_is_an_error(backend):
    assert isinstance(explain("--set", "kernels.attention=tiled").exception, KernelError)


def test_a_precision_that_the_device_lacks_is_said_and_the_table_is_still_shown(site, reference):
    site.backend("fake", SIMPLE + ATTENTION + "FakeBackend.supports = lambda self, dtype: dtype is torch.float32\n")
    text = text_of(explain())
    assert "precision: backend 'fake' (pretrain-fake 1.0) does not support float16 on this device." in text
    assert "attention other flash" in text


def test_layers_that_do_not_compile_for_the_device_are_said_and_the_table_is_still_shown(site, reference):
    site.module(reference.target, SIMPLE.replace("'plain'", "'reference'"))  # what is compiled is the reference's
    site.backend("fake", ATTENTION + "FakeBackend.compilation = lambda self: Unavailable('no compiler')\n")
    plain = ("--set", "model.hidden_dropout=0", "--set", "model.attention_dropout=0")
    assert "compilation:" not in text_of(explain(*plain))
    text = text_of(explain(*plain, "--set", "kernels.compile=layer"))
    assert (
        "compilation: backend 'fake' (pretrain-fake 1.0) does not support kernels.compile: layer: no compiler" in text
    )
    assert "attention other flash" in text


class TestWithoutTheDevice:
    UNAVAILABLE = "Unavailable('no driver', 'install it')"

    def test_the_reason_is_one_line_and_the_plugin_still_answers(self, site, reference):
        site.backend("fake", SIMPLE + ATTENTION, availability=self.UNAVAILABLE)
        result = explain()
        assert result.output.splitlines()[0] == "device: not available: no driver. install it"
        assert "attention other flash" in text_of(result)

    def test_a_plugin_that_cannot_answer_without_the_device_is_not_a_failure(self, site, reference):
        site.backend("fake", SIMPLE + ATTENTION.replace("return [", "1 / 0; return ["), availability=self.UNAVAILABLE)
        assert "kernels: not known without the device: backend 'fake'" in text_of(explain())

    def test_with_the_device_the_same_is_an_error(self, site, reference):
        site.backend("fake", SIMPLE + ATTENTION.replace("return [", "1 / 0; return ["))
        assert isinstance(explain().exception, BackendError)


def test_a_mistake_in_the_recipe_comes_before_one_in_the_backend():
    assert isinstance(explain("--set", "model.num_layer=2").exception, RecipeError)
    assert isinstance(explain().exception, BackendError)


@pytest.mark.full
def test_a_mistake_in_the_recipe_needs_no_torch():
    check = (
        "import sys\nfrom pretrain.cli.explain import command\nfrom pretrain.errors import RecipeError\n"
        "try:\n    command([sys.argv[1], '--set', 'model.num_layer=2'], standalone_mode=False)\n"
        "except RecipeError:\n    sys.exit('torch' in sys.modules)\nsys.exit('no error')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", check, RECIPE], check=False, env=dict(os.environ), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_a_backend_that_knows_devices_by_name_answers_for_one_that_is_not_here(site, reference):
    site.backend(
        "fake",
        SIMPLE
        + """
@hookimpl
def pretrain_attention(request):
    if request.device_name != "Chip 9":
        return Decline(name="tiled", reason=f"device {request.device_name!r}; only 'Chip 9'")
    return Offer(name="tiled", build=lambda built: 1 / 0)


def named(self, device_name):
    other = FakeBackend()
    other.device_name = lambda: device_name
    return other


FakeBackend.named = named
""",
    )
    assert "attention tiled" in text_of(explain("--device", "Chip 9"))
    assert "device 'Chip 8'; only 'Chip 9'" in str(explain("--device", "Chip 8").exception)


def test_a_backend_that_knows_no_names_says_so(backend):
    failure = explain("--device", "Chip 9").exception
    assert isinstance(failure, BackendError)
    assert str(failure).startswith("backend 'fake' knows no devices by name.\n")


class TestValues:
    """Where each value comes from."""

    @pytest.fixture(autouse=True)
    def folder_of_the_recipes(self, monkeypatch):
        monkeypatch.chdir(Path(RECIPE).parent)

    def values(self, *arguments: str) -> list[str]:
        result = CliRunner().invoke(command, ["gpt3-80gb.yml", *arguments])
        assert result.exit_code == 0, result.output
        return result.output.splitlines()

    def test_values_have_their_origin_defaults_are_one_paragraph_and_lines_fit(self):
        lines = self.values("--values", "--set", "train.seed=5", "--set", "schedule.lr_decay_style=constant")
        start = lines.index("parallel")
        assert [line.split() for line in lines[start : start + 4]] == [
            ["parallel"],
            ["tensor_model_parallel_size", "8", "gpt3.yml:58"],
            ["pipeline_model_parallel_size", "8", "gpt3.yml:59"],
            ["sequence_parallel", "true", "gpt3-80gb.yml:11"],
        ]
        assert lines[start + 4].startswith("  default: context_parallel_size 1, use_distributed_optimizer false, ")
        assert any(line.split() == ["seed", "5", "--set", "train.seed=5"] for line in lines)
        assert not [line for line in lines if "rotary_base" in line or len(line) > 100]
        start = lines.index("not used")
        assert (
            lines[start + 1] == "  recompute.method  gpt3.yml:63: no effect here; it needs recompute.granularity: full."
        )

    def test_a_section_or_a_key_is_shown_with_all_that_is_in_it(self):
        lines = self.values("precision", "engine.zero.stage", "train.seed")
        assert [line for line in lines if line[0] != " "] == ["train", "precision", "engine"]
        assert [line.split() for line in lines if " seed " in line or "loss_scale " in line] == [
            ["seed", "1234", "gpt3.yml:48"],
            ["loss_scale", "null", "default"],
            ["initial_loss_scale", "4294967296.0", "gpt3.yml:52"],
            ["min_loss_scale", "1.0", "gpt3.yml:55"],
        ]
        assert lines[-1].split(maxsplit=1) == ["zero", "no effect; it needs engine.name: deepspeed"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["precison"],
                "'precison' is neither a section of a recipe nor a key, section.key. Did you mean 'precision'?",
            ),
            (["--values", "--backend", "cpu"], "--backend has no effect on the values of a recipe: leave it out."),
            (["train", "--device", "X"], "--device has no effect on the values of a recipe: leave it out."),
        ],
    )
    def test_what_cannot_be_shown_is_refused(self, arguments, message):
        result = CliRunner().invoke(command, [RECIPE, *arguments])
        assert (result.exit_code, message in result.output) == (2, True)
