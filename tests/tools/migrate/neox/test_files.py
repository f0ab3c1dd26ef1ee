"""GPT-NeoX's YAML files: read as its loader reads them, merged as it merges them, with a line for every key."""

from __future__ import annotations

import textwrap

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import MigrateError
from pretrain.tools.migrate.neox.objects import flat
from pretrain.tools.migrate.setting import SourceLine
from pretrain.tools.migrate.sources.yaml_files import is_neox_yaml, read_block, read_neox


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def one(name, text):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path.relative_to(tmp_path)

    return one


def read(*paths):
    return {name: setting.value for name, setting in read_neox(paths).settings.items()}


def test_json_like_yaml_with_comments_dashes_and_trailing_commas(write):
    path = write(
        "model.yml",
        """\
        # a small one
        {
          "num-layers": 2, # dashes are underscores
          'pos_emb': "rotary",
          gpt_j_residual: True,
          "min_lr": 1e-5,
          "attention_config": [[["flash"], 2],],
          "optimizer": {
            "type": "Adam",
            "params": {"lr": 6.0e-4,},
          },
        }
        """,
    )
    source = read_neox([path])
    assert (source.name, source.kind, source.program) == ("model.yml", "neox", "train.py")
    assert read(path) == {
        "num_layers": 2,
        "pos_emb": "rotary",
        "gpt_j_residual": True,
        "min_lr": 1e-5,
        "attention_config": [[["flash"], 2]],
        "optimizer": {"type": "Adam", "params": {"lr": 6.0e-4}},
    }
    found = source.settings["num_layers"]
    assert (found.written, found.place) == ("num-layers", SourceLine("model.yml", 3))


def test_keys_of_objects_have_paths_and_lines_of_their_own(write):
    path = write("model.yml", '"optimizer":\n  "type": Adam\n  "params":\n    "lr": 0.1\n"fp16": {}\n')
    found = flat(read_neox([path]).settings)
    assert {name: (setting.value, setting.place.line) for name, setting in found.items()} == {
        "optimizer.type": ("Adam", 2),
        "optimizer.params.lr": (0.1, 4),
        "fp16": ({}, 5),
    }


def test_several_files_are_one_source(write):
    source = read_neox([write("a.yml", "seed: 1\n"), write("b.yml", "data-path: x\n")])
    assert source.name == "a.yml b.yml"
    assert source.settings["data_path"].place == SourceLine("b.yml", 1)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("train-iters: 1\n", "\ntrain_iters: 2\n"), "1.yml:2: train_iters (written train-iters there) is given in 0"),
        (("train_iters: 1\ntrain-iters: 2\n",), "0.yml:2: train-iters (written train_iters there) is given in 0.yml:1"),
        (("seed: 1\nseed: 2\n",), "0.yml:2: seed is given twice, in line 1 too."),
        (("optimizer: {lr: 1, lr: 2}\n",), "0.yml:1: lr is given twice, in line 1 too."),
        (("seed: 1\n  x: 2\n",), "0.yml:2: this is not a YAML file of settings: mapping values are not allowed here."),
        (("a: {\n\n",), "0.yml:3: this is not a YAML file of settings: "),
        (("- 1\n",), "0.yml:1: this is not a YAML file of settings: it has no keys."),
        (("",), "0.yml: this is not a YAML file of settings: it has no keys."),
        (("a: \x00\n",), "0.yml is not a text file."),
        (("1: 2\n",), "0.yml:1: this is not a YAML file of settings: the key 1 is not a word."),
        (("a: !!python/name:os.system x\n",), "0.yml:1: this is not a YAML file of settings: could not determine"),
        (("a:\n\tb: 2\n",), "0.yml:2: this is not a YAML file of settings: found character '\\t' that cannot start"),
    ],
)
def test_other_files_are_refused_with_their_lines(write, texts, message):
    paths = [write(f"{number}.yml", text) for number, text in enumerate(texts)]
    with pytest.raises(MigrateError) as error:
        read_neox(paths)
    assert str(error.value).startswith(message)


def test_a_missing_file_is_named(write):
    with pytest.raises(MigrateError, match=r"^local_setup.yml does not exist\."):
        read_neox([write("a.yml", "seed: 1\n").with_name("local_setup.yml")])


def test_nested_aliases_do_not_grow():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]
    with pytest.raises(MigrateError, match="too many nested values"):
        read_block("\n".join(lines), "aliases.yml")


def test_keys_of_a_merged_object_yield_to_others():
    text = "base: &base {lr: 1, eps: 2}\nparams:\n  <<: *base\n  lr: 3\n"
    found = read_block(text, "x.yml")
    assert found == yaml.safe_load(text)
    assert found["params"].places == {"lr": SourceLine("x.yml", 4), "eps": SourceLine("x.yml", 1)}


TEXTS = st.text(st.characters(exclude_categories=["Nd", "Cs"]), max_size=5)
"""Without digits: 0E0 is a text to PyYAML, and a number here."""

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXTS, inside, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS.filter(bool), PLAIN, min_size=1, max_size=4), st.booleans())
def test_values_are_those_of_yaml(data, flow):
    text = yaml.safe_dump(data, default_flow_style=flow)
    assert read_block(text, "x.yml") == yaml.safe_load(text) == data


@pytest.mark.parametrize(
    "data",
    [
        {"pipe-parallel-size": 1, "model-parallel-size": 1},
        {"num_layers": 2, "pos_emb": "rotary"},
        {"data-path": "x"},
        {"data_path": "x", "vocab_file": "y"},
    ],
)
def test_its_files_are_recognized(data):
    assert is_neox_yaml(data)


@pytest.mark.parametrize(
    "data",
    [
        {"model": {"num_layers": 2}, "train": {"train_iters": 3}},  # a recipe
        {"language_model": {"num_layers": 2}, "train_iters": 3, "vocab_file": "x"},  # Megatron-LM's --yaml-cfg
        {"version": 1, "on-push": True},
        {},
    ],
)
def test_other_yaml_is_not(data):
    assert not is_neox_yaml(data)
