"""`pretrain checkpoint convert`, `verify` and `recipe`, as a user calls them."""

from __future__ import annotations

import json

import pytest
import tokenizers
import torch
import transformers
import yaml
from click.testing import CliRunner

from pretrain.errors import PretrainError
from pretrain.tools.convert.commands import command

CONFIG = {
    "GPT-2": transformers.GPT2Config(vocab_size=256, n_positions=16, n_embd=32, n_layer=2, n_head=4),
    "GPT-NeoX": transformers.GPTNeoXConfig(
        vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=16, hidden_act="gelu_fast",
    ),
    "Llama": transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=96, max_position_embeddings=16,
    ),
}  # fmt: skip
WAYS = [
    *(("GPT-2", to) for to in ("pretrain", "megatron", "torch_dist", "deepspeed", "neox")),
    *(("GPT-NeoX", to) for to in ("pretrain", "neox")),
    *(("Llama", to) for to in ("pretrain", "megatron", "torch_dist", "neox")),
]


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory):
    """Folders of models that transformers saved, by name."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(1)
    for name, config in CONFIG.items():
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
    return folder


def call(*arguments):
    """Return the exit code and the output; user errors are raised."""
    result = CliRunner().invoke(command, list(map(str, arguments)), standalone_mode=False, catch_exceptions=False)
    return result.return_value or 0, result.output


@pytest.mark.parametrize(("model", "to"), WAYS)
def test_a_model_comes_back_bit_by_bit_through_every_format_that_holds_it(hugging_face, tmp_path, model, to):
    layout = ("--tensor", 2) if to in {"megatron", "neox"} else ()
    call("convert", hugging_face / model, tmp_path / "there", "--to", to, *layout)
    assert len(list((tmp_path / "there").rglob("checksums.txt"))) == 1
    call("convert", tmp_path / "there", tmp_path / "back", "--to", "huggingface")
    code, output = call("verify", tmp_path / "back", "--against", hugging_face / model)
    assert code == 0
    assert "equal to" in output
    tokens = torch.arange(12)[None]
    ours, theirs = (
        transformers.AutoModelForCausalLM.from_pretrained(path).eval()(tokens).logits
        for path in (tmp_path / "back", hugging_face / model)
    )
    torch.testing.assert_close(ours[..., :256], theirs, rtol=0, atol=1e-6)


def test_verify_names_the_weights_that_differ(hugging_face, tmp_path):
    call("convert", hugging_face / "Llama", tmp_path / "half", "--to", "pretrain", "--dtype", "bf16")
    code, output = call("verify", tmp_path / "half", "--against", hugging_face / "Llama")
    assert code == 1
    assert "different from" in output
    assert "decoder.layers.0.mlp.linear_fc1.weight: by at most" in output


def test_verify_names_the_settings_that_differ(hugging_face, tmp_path):
    call("convert", hugging_face / "GPT-NeoX", tmp_path / "ours", "--to", "pretrain", "--set", "model.rotary_base=500")
    code, output = call("verify", tmp_path / "ours", "--against", hugging_face / "GPT-NeoX")
    assert code == 1
    assert "different model: rotary_base is 500.0, and 10000.0 in the other" in output


def test_a_tokenizer_of_another_size_is_refused_instead_of_cutting_the_vocabulary(hugging_face, tmp_path):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<eos>": 1}, unk_token="a"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    options = ("--to", "pretrain", "--tokenizer", tmp_path / "tokenizer.json")
    with pytest.raises(PretrainError, match=r"has 2 tokens, and .* has 256, which padding does not explain"):
        call("convert", hugging_face / "GPT-2", tmp_path / "target", *options)


@pytest.fixture
def run_dir(hugging_face, tmp_path):
    """A run's directory with a checkpoint of 256 tokens; its recipe names a tokenizer of so many."""
    call("convert", hugging_face / "GPT-2", tmp_path / "run" / "checkpoints", "--to", "pretrain")
    words = tokenizers.models.WordLevel(
        {f"w{number}": number for number in range(255)} | {"<eos>": 255}, unk_token="w0"
    )
    tokenizers.Tokenizer(words).save(str(tmp_path / "words.json"))
    section = yaml.safe_load(call("recipe", tmp_path / "run")[1])
    data = {"tokenizer": {"type": "huggingface", "file": str(tmp_path / "words.json")}, "data": {"path": "corpus"}}
    train = {"train": {"micro_batch_size": 1, "global_batch_size": 1, "train_iters": 1}, "optimizer": {"lr": 1e-3}}
    (tmp_path / "run" / "recipe.yml").write_text(yaml.safe_dump(section | data | train))
    return tmp_path / "run"


def test_a_run_brings_its_tokenizer(run_dir, tmp_path):
    _, output = call("convert", run_dir, tmp_path / "hf", "--to", "huggingface")
    assert f"tokenizer: {tmp_path / 'words.json'}" in output
    assert (tmp_path / "hf" / "tokenizer.json").read_bytes() == (tmp_path / "words.json").read_bytes()


def test_a_tokenizer_that_is_not_there_is_not_written_and_that_is_told(run_dir, tmp_path):
    (tmp_path / "words.json").unlink()
    _, output = call("convert", run_dir, tmp_path / "hf", "--to", "huggingface")
    assert f"the tokenizer of {run_dir / 'recipe.yml'} is not used: {tmp_path / 'words.json'} does not exist" in output
    assert "no tokenizer is written: pass --tokenizer FILE" in output


def test_verify_finds_numbers_that_are_not_finite(hugging_face, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(hugging_face / "GPT-2")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[3, 5] = float("nan")
    model.save_pretrained(tmp_path / "broken")
    code, output = call("verify", tmp_path / "broken")
    assert code == 1
    assert "numbers that are not finite: decoder.layers.1.mlp.linear_fc1.weight" in output


def test_the_recipe_that_is_printed_is_the_model(hugging_face):
    section = yaml.safe_load(call("recipe", hugging_face / "Llama")[1])["model"]
    told = {name: section[name] for name in ("num_layers", "num_query_groups", "ffn_hidden_size", "activation")}
    assert told == {"num_layers": 2, "num_query_groups": 2, "ffn_hidden_size": 96, "activation": "swiglu"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("GPT-NeoX", "--to", "megatron"), r"parallel_residual"),
        (("GPT-2", "--to", "huggingface", "--tensor", "2"), r"--tensor 2 has no effect on files of huggingface"),
        (("GPT-2", "--to", "neox", "--set", "model.num_layer=2"), r"Did you mean 'num_layers'\?"),
        (("absent", "--to", "neox"), r"absent does not exist"),
    ],
)
def test_an_impossible_conversion_is_refused_and_writes_nothing(hugging_face, tmp_path, arguments, message):
    source, *options = arguments
    with pytest.raises(PretrainError, match=message) as error:
        call("convert", hugging_face / source, tmp_path / "target", *options)
    assert str(error.value).count("\n") <= 2
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_exists_or_holds_the_source_is_refused(hugging_face, tmp_path):
    for target in (hugging_face, hugging_face / "GPT-2"):
        with pytest.raises(PretrainError, match=r"exists already|contains the source"):
            call("convert", hugging_face / "GPT-2", target, "--to", "pretrain")
    with pytest.raises(PretrainError, match="contains the source"):
        call("convert", hugging_face / "GPT-2", hugging_face / "GPT-2", "--to", "pretrain", "--force")


def test_a_shard_outside_of_the_folder_is_not_read(hugging_face, tmp_path):
    index = {"weight_map": {"lm_head.weight": "../GPT-2/model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text((hugging_face / "GPT-2" / "config.json").read_text())
    with pytest.raises(PretrainError, match="names files that are not in its folder"):
        call("convert", tmp_path, tmp_path / "target", "--to", "pretrain")
