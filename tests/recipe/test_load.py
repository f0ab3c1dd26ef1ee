"""A YAML file becomes a recipe, or a message that names file, line and key."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import yaml

from pretrain.errors import RecipeError
from pretrain.recipe import load_recipe, make_recipe


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write recipe.yml into the working directory."""
    monkeypatch.chdir(tmp_path)
    return (tmp_path / "recipe.yml").write_text


@pytest.fixture
def message(write):
    def refuse(text, *overrides):
        write(text)
        with pytest.raises(RecipeError) as caught:
            load_recipe("recipe.yml", overrides)
        return str(caught.value)

    return refuse


BOMB = "\n".join(
    ["model: {num_layers: &0 [1, 2, 3, 4, 5, 6, 7, 8, 9]}", "data:"]
    + [f"  x{n}: &{n} [{', '.join([f'*{n - 1}'] * 9)}]" for n in range(1, 10)]
    + ["  path: *9"]
)
"""9 ** 10 numbers in 12 lines."""


def text_of(data, more=""):
    return yaml.safe_dump(data, sort_keys=False) + more


def test_a_file_and_the_same_data_give_the_same_recipe(write, smallest):
    write(text_of(smallest))
    recipe = load_recipe("recipe.yml")
    assert recipe == make_recipe(smallest)
    assert recipe.source == "recipe.yml"


def test_an_unknown_key_is_named_by_file_line_and_path(message, smallest):
    smallest["model"]["num_heads"] = 4
    assert message(text_of(smallest)) == (
        "recipe.yml:6: model.num_heads: unknown key. Did you mean 'model.num_attention_heads'?"
    )


def test_a_key_of_another_section_is_found_there(message, smallest):
    del smallest["optimizer"]
    smallest["model"]["lr"] = 1e-3
    assert message(text_of(smallest)).splitlines() == [
        "recipe.yml:6: model.lr: unknown key. Did you mean 'optimizer.lr'?",
        "recipe.yml: optimizer: required. Adam or Muon, and gradient clipping.",
    ]


def test_a_key_outside_of_any_section_is_found_in_its_section(message, smallest):
    assert "micro_batch_size: unknown key. Did you mean 'train.micro_batch_size'?" in message(
        text_of(smallest, "micro_batch_size: 1\n")
    )


def test_a_misspelt_section_is_named(message, smallest):
    text = text_of(smallest, "optimiser: {lr: 1}\n")
    assert message(text) == "recipe.yml:16: optimiser: unknown key. Did you mean 'optimizer'?"


def test_all_mistakes_are_reported_at_once(message, smallest):
    smallest["train"]["train_iters"] = "abc"
    smallest["tokenizer"]["type"] = "sentencepiece"
    del smallest["data"]
    assert message(text_of(smallest)).splitlines() == [
        (
            "recipe.yml:7: tokenizer.type: 'sentencepiece' is not gpt2 (GPT2BPETokenizer), huggingface (HFTokenizer) "
            "or bytes."
        ),
        "recipe.yml: data: required. The token files, how they are mixed, and how they are cut into sequences.",
        "recipe.yml:11: train.train_iters: 'abc' is not a whole number.",
    ]


def test_only_the_first_of_very_many_mistakes_are_shown(message, smallest):
    lines = message(text_of(smallest, "".join(f"wrong{n}: 1\n" for n in range(20)))).splitlines()
    assert (len(lines), lines[-1]) == (9, "... and 12 more.")


def test_a_missing_key_is_placed_at_its_section(message, smallest):
    del smallest["train"]["micro_batch_size"]
    assert message(text_of(smallest)).startswith("recipe.yml:10: train.micro_batch_size: required. Samples that")


def test_a_wrong_part_of_a_blend_is_named_by_its_line(message, smallest):
    smallest["data"] = {"blend": [{"weight": 1, "path": "a"}, {"weight": 0, "path": "b"}]}
    assert message(text_of(smallest)) == "recipe.yml:12: data.blend.1.weight: 0.0 must be greater than 0."


def test_a_duplicate_key_is_an_error(message, smallest):
    assert message(text_of(smallest, "  adam_eps: 1.0e-8\n  lr: 2\n")) == (
        "recipe.yml:17: optimizer.lr is given twice; remove one."
    )


def test_a_recipe_can_be_pickled(write, smallest):
    write(text_of(smallest))
    recipe = load_recipe("recipe.yml")
    arrived = pickle.loads(pickle.dumps(recipe))
    assert (arrived, arrived.source) == (recipe, "recipe.yml")


def test_null_counts_as_not_given(write, smallest):
    write(text_of(smallest, "evaluation:\n  interval:\nlogging:\nschedule: {min_lr: null}\n"))
    assert load_recipe("recipe.yml") == make_recipe(smallest)


def test_null_does_not_hide_an_unknown_key(message, smallest):
    assert "evaluation.intervall: unknown key." in message(text_of(smallest, "evaluation: {intervall: null}\n"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: [1", "recipe.yml:1: this is not YAML: "),
        ("a: b: c", "recipe.yml:1: this is not YAML: mapping values are not allowed here."),
        ("a: !!python/object/apply:os.getcwd []", "recipe.yml:1: this is not YAML: could not determine a constructor"),
        ("model: !!set {a}", "recipe.yml:1: model: {'a'} is not a section with keys."),
        ("[" * 5000, "recipe.yml: this is not YAML: "),
        (BOMB, "... and 9 more."),
        ("a: \x00", "recipe.yml: this is not YAML: "),
        ("model: {seq_length: 1:30}", "recipe.yml:1: model.seq_length: '1:30' is not a whole number."),
        ("model: {seq_length: 2020-01-01}", "recipe.yml:1: model.seq_length: '2020-01-01' is not a whole number."),
        (f"model: {{seq_length: {'9' * 5000}}}", "recipe.yml: this is not YAML: "),
        ("- model", "recipe.yml: a recipe is a mapping of sections (model:, train:, ...), not a list."),
        ("model", "recipe.yml: a recipe is a mapping of sections (model:, train:, ...), not a text."),
        ("model: 3", "recipe.yml:1: model: 3 is not a section with keys."),
        ("", "recipe.yml: model: required. The shape of the GPT and how its weights start."),
    ],
)
def test_a_malformed_recipe_is_refused_with_an_explanation(message, text, expected):
    refused = message(text)
    assert expected in refused
    assert len(refused.splitlines()) <= 9
    assert len(refused) < 1000


def test_a_missing_file_suggests_its_neighbour(write):
    write("")
    with pytest.raises(RecipeError, match=r"recipes.yml: there is no such recipe. Did you mean 'recipe.yml'\?\n"):
        load_recipe("recipes.yml")


def test_a_folder_and_a_binary_file_are_not_recipes(tmp_path):
    binary = tmp_path / "binary.yml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="cannot be read: it is not UTF-8 text"):
        load_recipe(binary)
    with pytest.raises(RecipeError, match=r"this is a directory, not a recipe\.\nGive the path of"):
        load_recipe(tmp_path)
    (tmp_path / "recipe.yml").touch()
    with pytest.raises(RecipeError, match=r"\nIt is a run's directory: give .*/recipe\.yml\.$"):
        load_recipe(tmp_path)


def test_loading_and_refusing_a_recipe_does_not_import_torch(write, smallest):
    write(text_of(smallest, "optimiser: {lr: 1}\n"))
    program = (
        "import sys\nfrom pretrain.errors import RecipeError\nfrom pretrain.recipe import load_recipe\n"
        "try:\n    load_recipe('recipe.yml')\nexcept RecipeError as error:\n"
        "    print(error, {'torch', 'megatron', 'rich', 'numpy'} & set(sys.modules))\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown == "recipe.yml:16: optimiser: unknown key. Did you mean 'optimizer'? set()\n"
