"""`extends: base.yml`: a file that is laid over another; and `version`, the number of the format."""

from __future__ import annotations

import copy

import pytest
import yaml

from pretrain.errors import RecipeError
from pretrain.recipe import load_recipe, make_recipe, to_yaml
from recipe.smallest import SMALLEST


@pytest.fixture
def write(tmp_path):
    """Write a recipe of the smallest one, or of text; return its path."""

    def written(name, text="", **sections):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        data = copy.deepcopy(SMALLEST)
        for section, keys in sections.items():
            data[section] = data.get(section, {}) | keys
        path.write_text(text or yaml.safe_dump(data, sort_keys=False))
        return path

    return written


def refused(path, *overrides):
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_sections_are_merged_key_by_key_and_other_values_are_replaced(write, make):
    blend = {"path": None, "blend": [{"weight": 1, "path": "a"}, {"weight": 2, "path": "b"}]}
    write("base.yml", data=blend, engine={"name": "deepspeed", "zero": {"stage": 1, "offload_optimizer": {}}})
    path = write(
        "own.yml",
        "extends: base.yml\nmodel: {num_layers: 4}\ndata: {blend: [{weight: 3, path: c}]}\n"
        "engine: {zero: {offload_optimizer: {device: cpu}}}\n",
    )
    assert load_recipe(path) == make(
        "model.num_layers=4",
        "data.blend=[{weight: 3, path: c}]",
        "engine={name: deepspeed, zero: {stage: 1, offload_optimizer: {device: cpu}}}",
    )


def test_null_unsets_a_key_of_the_base(write, make):
    write("base.yml", evaluation={"interval": 5, "iters": 3}, optimizer={"clip_grad": 2})
    path = write("own.yml", "extends: base.yml\nevaluation: {iters: null}\noptimizer: {clip_grad: null}\n")
    assert load_recipe(path) == make("evaluation.interval=5")


def test_an_empty_section_does_not_drop_the_bases(write):
    write("base.yml", checkpoint={"load": "weights", "finetune": True})
    first, second = refused(write("own.yml", "extends: base.yml\ncheckpoint:\n  # keep: 2\n")).splitlines()
    assert first == "own.yml:2: checkpoint is empty, which would unset all that is given below it: load, finetune."
    assert second.startswith("Delete the line to keep that")


def test_a_file_may_extend_one_that_extends_another_and_each_path_is_relative_to_its_file(write, make, monkeypatch):
    write("base.yml")
    write("team/middle.yml", "extends: ../base.yml\ntrain: {seed: 1, micro_batch_size: 4}\n")
    path = write("own.yml", "extends: team/middle.yml\ntrain: {seed: 2}\n")
    expected = make("train.micro_batch_size=4", "train.seed=2")
    assert load_recipe(path) == expected
    monkeypatch.chdir(path.parent / "team")
    assert load_recipe("../own.yml") == expected
    assert load_recipe(write("absolute.yml", f"extends: {path}")) == expected


def test_paths_inside_a_base_stay_relative_to_the_working_directory(write):
    write("team/base.yml", data={"path": "data/text"})
    assert load_recipe(write("own.yml", "extends: team/base.yml")).data.path == "data/text"


def test_overrides_are_laid_over_all_files(write, make):
    write("base.yml", train={"seed": 1})
    path = write("own.yml", "extends: base.yml\ntrain: {seed: 2}\n")
    assert load_recipe(path, ["train.seed=3"]) == make("train.seed=3")
    assert load_recipe(path, ["train.seed=null"]) == make()


class TestRulesOfOverridesBetweenFiles:
    def test_one_of_two_alternatives_replaces_the_other_of_the_base(self, write, make):
        write("base.yml", schedule={"lr_warmup_iters": 5})
        middle = write(
            "middle.yml", "extends: base.yml\ntrain: {train_samples: 64}\nschedule: {lr_warmup_fraction: 0.1}"
        )
        assert load_recipe(middle) == make("train.train_samples=64", "schedule.lr_warmup_fraction=0.1")
        assert load_recipe(write("own.yml", "extends: middle.yml\ntrain: {train_iters: 9}")) == make(
            "train.train_iters=9", "schedule.lr_warmup_fraction=0.1"
        )

    def test_two_alternatives_of_one_file_are_a_mistake_in_it(self, write):
        write("base.yml")
        path = write("own.yml", "extends: base.yml\ntrain:\n  train_iters: 3\n  train_samples: 64\n")
        assert refused(path).startswith("own.yml:4: train.train_samples: given together with train.train_iters")

    def test_keys_of_the_base_that_are_left_without_effect_go(self, write, make):
        write("base.yml", precision={"dtype": "fp16", "loss_scale": 128}, engine={"name": "deepspeed", "zero": {}})
        write("middle.yml", "extends: base.yml\nengine: {zero: {stage: 2}}")
        path = write("own.yml", "extends: middle.yml\nprecision: {dtype: fp32}\nengine: {name: megatron}\n")
        assert load_recipe(path) == make()

    def test_a_key_that_the_base_leaves_without_effect_is_a_mistake_where_it_is_given(self, write):
        write("base.yml", precision={"dtype": "fp32"})
        write("middle.yml", "extends: base.yml\nprecision:\n  loss_scale: 128\n")
        expected = "middle.yml:3: precision.loss_scale: no effect here; it needs precision.dtype: fp16."
        assert refused(write("own.yml", "extends: middle.yml\ntrain: {seed: 5}\n")) == expected


def test_a_mistake_is_shown_where_it_was_made(write):
    write("base.yml", f"{yaml.safe_dump(SMALLEST)}precision:\n  dtyp: fp32\n")
    path = write("own.yml", "extends: base.yml\nmodel:\n  num_layer: 3\ntrain: {micro_batch_size: null}\n")
    first, second, third = refused(path).splitlines()
    assert first == "own.yml:3: model.num_layer: unknown key. Did you mean 'model.num_layers'?"
    assert second.startswith("base.yml:17: precision.dtyp: unknown key.")
    assert third.startswith("own.yml:4: train.micro_batch_size: required.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "# head\nextends: bsae.yml",
            "own.yml:2: extends: bsae.yml: there is no such recipe. Did you mean 'base.yml'?\nGive the path of a YAML ",
        ),
        ("extends: .", "own.yml:1: extends: DIR: this is a directory, not a recipe."),
        (
            "extends: [base.yml, more.yml]",
            "own.yml:1: extends: ['base.yml', 'more.yml'] is not the path of a recipe. One file can be named, which ",
        ),
        (
            "extends: s3://bucket/base.yml",
            "own.yml:1: extends: 's3://bucket/base.yml' is a URL; only local files are read and written. Mount ",
        ),
        ("model:\n  extends: base.yml", "own.yml:2: model.extends: unknown key."),
    ],
)
def test_a_base_that_cannot_be_read_is_named_with_the_line_that_names_it(write, text, message):
    write("base.yml")
    path = write("own.yml", text)
    assert refused(path).replace(str(path.parent), "DIR").startswith(message)


def test_files_that_extend_each_other_are_refused_with_the_whole_circle(write):
    write("a.yml", "extends: b.yml")
    write("b.yml", "train: {}\nextends: ./a.yml")
    path = write("own.yml", "extends: a.yml")
    assert refused(path) == (
        "b.yml:2: extends: a recipe cannot extend itself: own.yml -> a.yml -> b.yml -> a.yml.\n"
        "Remove one `extends` of these."
    )
    assert "cannot extend itself: self.yml -> self.yml." in refused(write("self.yml", "extends: self.yml"))


def test_the_recipe_that_is_written_out_extends_nothing_and_says_its_format(write):
    write("base.yml")
    recipe = load_recipe(write("own.yml", "extends: base.yml\nversion: 1\ntrain: {seed: 7}\n"))
    written = yaml.safe_load(to_yaml(recipe))
    assert (next(iter(written)), written["version"], "extends" in written) == ("version", 1, False)
    assert make_recipe(written) == recipe


def test_a_recipe_without_a_version_is_of_the_first(smallest):
    assert make_recipe(smallest) == make_recipe({"version": 1, **smallest}) == make_recipe(smallest, ["version=null"])


def test_a_newer_format_is_refused_before_anything_else_in_a_base_too(write):
    write("base.yml", "version: 3\nsections: [that, nobody, knows]\n")
    message = refused(write("own.yml", "extends: base.yml\n"))
    assert message.startswith("base.yml:1: this recipe is of format 3; this pretrain, ")
    assert message.endswith(", reads up to 1.\nUpdate pretrain.")


@pytest.mark.parametrize("given", ["0", "true", "1.5", "new"])
def test_a_version_that_is_no_number_of_a_format_is_refused(refusal, given):
    assert refusal(f"version={given}").startswith(f"--set version={given}: version: ")
    assert refusal(f"version={given}").endswith(
        " is not the number of a format; the newest is 1.\nWithout the key it is 1."
    )
