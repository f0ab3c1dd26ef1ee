"""docs/recipes.md and the JSON Schema agree with the code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pretrain.recipe import Recipe
from pretrain.recipe.checks.effect import RULES
from pretrain.recipe.recipe import inner_section, keys_of_recipe, walk
from recipes_page import KEYS, PAGE, SCHEMA, keys, page, schema

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "generate"), [(PAGE, page), (SCHEMA, schema), (KEYS, keys)])
def test_the_page_agrees_with_the_sections(name, generate):
    assert (DOCS / name).read_text(encoding="utf-8") == generate(), "run: python docs/generate/recipes_page.py"


def test_every_key_says_in_one_sentence_what_it_is():
    for path, sentence in keys_of_recipe().items():
        assert sentence.endswith("."), path
        assert 10 < len(sentence) < 200, path


def test_every_key_has_a_row():
    keys = [path for path, field in walk(Recipe) if "." in path and inner_section(field) is None]
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) == len([path for path in keys_of_recipe() if "." in path])
    for path in keys:
        assert f"`{path.partition('.')[2]}`" in page()


def test_rules_name_keys_that_exist():
    for rule in RULES:
        assert {*rule.keys, *rule.decided_by} <= set(keys_of_recipe())
        assert len({key.partition(".")[0] for key in rule.keys}) <= 2


def test_the_schema_refuses_unknown_keys_everywhere():
    definitions = json.loads(schema())
    assert definitions["additionalProperties"] is False
    assert all(section["additionalProperties"] is False for section in definitions["$defs"].values())
