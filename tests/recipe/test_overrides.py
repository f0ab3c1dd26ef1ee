"""--set section.key=value."""

from __future__ import annotations

import pytest

from pretrain.recipe import make_recipe


def test_a_value_is_yaml(make):
    assert make("data={blend: [{weight: 2, path: a}]}").data.blend[0].path == "a"
    assert make("evaluation.prompt='a = b'").evaluation.prompt == "a = b"
    assert make("evaluation.prompt=a = b").evaluation.prompt == "a = b"
    assert make("parallel.use_distributed_optimizer=true").parallel.use_distributed_optimizer


@pytest.mark.parametrize("given", ["1:30", "-1:30:00", "2020-01-01", "2020-13-01"])
def test_a_time_is_no_number_but_text(make, refusal, given):
    assert refusal(f"model.seq_length={given}").endswith(f"model.seq_length: '{given}' is not a whole number.")
    assert refusal(f"optimizer.lr={given}").endswith(f"optimizer.lr: '{given}' is not a number.")
    assert make(f"evaluation.prompt={given}").evaluation.prompt == given


def test_the_last_one_wins(make):
    assert make("train.seed=1", "train.seed=2").train.seed == 2


def test_a_key_deep_inside_can_be_set(make):
    more = ("tokenizer={type: huggingface, file: t.json, vocab_size: 512}", "data.corpus.source=python_stdlib")
    assert make(*more, "data.corpus.max_bytes=10").data.corpus.max_bytes == 10


def test_null_unsets_a_key_of_the_file(smallest):
    smallest["evaluation"] = {"interval": 5}
    assert make_recipe(smallest, ["evaluation.interval=null"]) == make_recipe(smallest, ["evaluation=null"])


@pytest.mark.parametrize("override", ["model.num_layers", "=3", "model.=3", ".x=3", ""])
def test_a_malformed_override_gets_an_example(refusal, override):
    assert refusal(override) == (
        f"--set {override}: an override is section.key=value, for example --set model.num_layers=2."
    )


@pytest.mark.parametrize("value", ["[", "!!python/name:os.system", "9" * 5000, "[" * 5000])
def test_a_value_that_is_not_yaml_is_refused(refusal, value):
    refused = refusal(f"evaluation.prompt={value}")
    assert refused.startswith("--set evaluation.prompt=")
    assert ": the value is not YAML. Quote it: --set 'evaluation.prompt=\"...\"'." in refused


def test_a_mistake_in_an_override_names_the_override(refusal):
    assert refusal("model.num_layer=3").startswith(
        "--set model.num_layer=3: model.num_layer: unknown key. Did you mean 'model.num_layers'?"
    )
    assert refusal("modle.num_layers=3").startswith(
        "--set modle.num_layers=3: modle: unknown key. Did you mean 'model'?"
    )
    assert refusal("train={train_iters: 3}").startswith(
        "--set train={train_iters: 3}: train.micro_batch_size: required."
    )


@pytest.mark.parametrize(
    ("override", "section", "replaced"),
    [
        ("train.train_samples=64", "train", "train_iters"),
        ("data.blend=[{weight: 1, path: a}]", "data", "path"),
        ("data={train_data_path: a, valid_data_path: b}", "data", "path"),
    ],
)
def test_an_override_of_one_alternative_replaces_the_other_of_the_file(make, override, section, replaced):
    assert getattr(getattr(make(override), section), replaced) is None


def test_files_for_the_splits_replace_a_common_one_and_not_each_other(make):
    data = make("data.train_data_path=a", "data.valid_data_path=[{weight: 2, path: b}, {weight: 1, path: c}]").data
    assert (data.path, data.token_files) == (None, ["a", "b", "c"])
    assert [len(files) for files in data.splits] == [1, 2, 0]
    assert make("data.blend=[{weight: 1, path: d}]").data.train_data_path is None


def test_both_alternatives_as_overrides_are_a_mistake(refusal):
    assert refusal("train.train_samples=64", "train.train_iters=3").startswith(
        "--set train.train_samples=64: train.train_samples: given together with train.train_iters; choose one."
    )


def test_the_data_given_is_not_changed(smallest):
    smallest["data"]["corpus"] = {"source": "python_stdlib"}
    make_recipe(smallest, ["data.corpus.max_bytes=3", "model.num_layers=4"])
    assert smallest["model"]["num_layers"] == 2
    assert smallest["data"]["corpus"] == {"source": "python_stdlib"}


def test_a_value_may_be_json(make):
    """With the quotes of a shell: --set 'data.blend=[{"weight": 0.3, "path": "a"}, ...]'."""
    blend = '[\n\t{"weight": 0.3, "path": "a"},\n\t{"weight": 0.7, "path": "b = c"}\n]'
    recipe = make(f"data.blend={blend}", 'recompute={"granularity": "full"}', "model.parallel_residual=true")
    assert [(part.weight, part.path) for part in recipe.data.blend] == [(0.3, "a"), (0.7, "b = c")]
    assert recipe.recompute.granularity == "full"
