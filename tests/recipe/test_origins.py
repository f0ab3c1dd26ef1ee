"""Where each value of a recipe comes from."""

from __future__ import annotations

import json

import pytest
import yaml

from pretrain.recipe.load import load_with_document
from pretrain.recipe.origins import Kind, left_out, origins_of
from pretrain.recipe.recipe import Recipe, inner_section, walk
from recipe.smallest import SMALLEST


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Lay a text over the smallest recipe; return the origins by key, and what is left out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yml").write_text(yaml.safe_dump(SMALLEST, sort_keys=False))

    def origins(text, *overrides):
        (tmp_path / "own.yml").write_text(f"extends: base.yml\n{text}")
        recipe, document = load_with_document("own.yml", overrides)
        return {row.path: (row.kind, row.value, row.origin) for row in origins_of(recipe, document)}, left_out(document)

    return origins


def test_a_value_that_was_given_has_the_line_or_the_override(read):
    rows, _ = read("model:\n  num_layers: 4\n", "train.seed=3", "recompute={granularity: full}")
    assert rows["model.num_layers"] == (Kind.GIVEN, 4, "own.yml:3")
    assert rows["model.hidden_size"] == (Kind.GIVEN, 64, "base.yml:3")
    assert rows["train.seed"] == (Kind.GIVEN, 3, "--set train.seed=3")
    assert rows["recompute.granularity"] == (Kind.GIVEN, "full", "--set recompute={granularity: full}")


def test_a_default_that_follows_from_other_keys_names_them(read):
    rows, _ = read("precision: {dtype: bf16}")
    assert rows["model.ffn_hidden_size"] == (Kind.DERIVED, 256, "derived from hidden_size, activation")
    assert rows["model.num_query_groups"] == (Kind.DERIVED, 4, "derived from num_attention_heads")
    assert rows["precision.grad_reduce_in_fp32"] == (Kind.DERIVED, True, "derived from dtype")
    assert rows["optimizer.adam_beta2"] == (Kind.DEFAULT, 0.999, "default")
    assert rows["train.rampup_batch_size"] == (Kind.UNSET, None, "default")


def test_a_key_of_a_deepspeed_file_has_its_line_there(read, tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}))
    rows, _ = read("engine: {name: deepspeed, deepspeed_config: ds.json}")
    assert rows["precision.dtype"] == (Kind.GIVEN, "bf16", "ds.json:1: bf16.enabled")
    assert rows["engine.zero.stage"] == (Kind.GIVEN, 2, "ds.json:1: zero_optimization.stage")


def test_a_key_without_effect_says_what_it_needs_and_a_section_of_such_is_one_row(read):
    rows, _ = read("")
    assert rows["model.rotary_base"][::2] == (Kind.IDLE, "no effect; it needs model.position_embedding_type: rope")
    assert rows["engine.zero"][::2] == (Kind.IDLE, "no effect; it needs engine.name: deepspeed")
    assert not [path for path in rows if path.startswith("engine.zero.")]


def test_what_was_given_and_is_not_used_has_a_reason(read):
    _, unused = read("train: {train_samples: 64}\nprecision: {dtype: fp16, loss_scale: 8}", "precision.dtype=fp32")
    assert unused == [
        ("train.train_iters", "base.yml:13", "train.train_samples replaces it"),
        ("precision.loss_scale", "own.yml:3", "no effect here; it needs precision.dtype: fp16."),
    ]
    assert read("train: {train_samples: 64}", "train.train_iters=4", "train.train_samples=null")[1] == []


def test_every_key_has_a_row(read):
    rows, _ = read("engine: {name: deepspeed, zero: {stage: 3}}")
    keys = [path for path, field in walk(Recipe) if inner_section(field) is None and "blend." not in path]
    covered = {path for path in keys if any(f"{path}.".startswith(f"{row}.") for row in rows)}
    assert covered == set(keys)
