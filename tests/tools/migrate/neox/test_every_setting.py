"""Meanings of GPT-NeoX's settings: every name has one, every key and value is a recipe's."""

from __future__ import annotations

from collections import Counter

import pytest

from pretrain.recipe.recipe import keys_of_recipe
from pretrain.tools.migrate.meaning import Mapped, NotNeeded, NotSupported, meanings_in
from pretrain.tools.migrate.neox.meanings import FUNCTIONS, KEY_BY_KEY, MEANINGS, meaning_of
from pretrain.tools.migrate.neox.objects import OBJECTS

CARRIED = {name: meaning for name, meaning in MEANINGS.items() if isinstance(meaning, Mapped)}


def test_a_name_is_in_one_table():
    names = [*OBJECTS, *(name for name, _ in meanings_in("neox"))]
    assert [name for name, times in Counter(names).items() if times > 1] == []


def test_keys_are_those_of_a_recipe():
    known = keys_of_recipe()
    assert {meaning.key for meaning in CARRIED.values()} | set(FUNCTIONS) <= set(known)


def test_two_settings_of_one_key_have_a_function():
    several = Counter(meaning.key for meaning in CARRIED.values())
    assert [key for key, times in several.items() if times > 1 and key not in FUNCTIONS] == []


def test_a_key_that_needs_more_than_its_setting_has_a_function():
    """The generic reader takes the rest as it is."""
    assert [name for name, meaning in CARRIED.items() if meaning.how and meaning.key not in FUNCTIONS] == []


def test_sentences_are_made_to_be_joined():
    fields = {Mapped: "how", NotNeeded: "text", NotSupported: "change"}
    texts = {name: getattr(meaning, fields[type(meaning)]) for name, meaning in MEANINGS.items()}
    assert [name for name, text in texts.items() if text.endswith((".", " "))] == []


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("optimizer.params.lr", "optimizer.lr"),
        ("bf16.enabled", "precision.dtype"),
        ("zero_optimization.stage", "engine.zero.stage"),
    ],
)
def test_keys_of_objects_have_meanings(name, key):
    assert meaning_of(name).key == key


def test_a_key_inside_an_object_without_tables_has_the_meaning_of_the_object():
    assert meaning_of("comet_others.team") is MEANINGS["comet_others"]
    assert meaning_of("scheduler.params.warmup_num_steps") is MEANINGS["scheduler"]
    assert meaning_of("flops_profiler.profile_step") == NotNeeded("no effect", "it belongs to flops_profiler.enabled")
    assert isinstance(meaning_of("flops_profiler.enabled"), NotSupported)


@pytest.mark.parametrize("name", ["num_layer", "zero_optimization.stag", "optimizer.params.lrr", "fp16.enable", "x.y"])
def test_unknown_names_have_none(name):
    assert meaning_of(name) is None


def test_objects_that_are_read_key_by_key_have_keys():
    assert [path for path in KEY_BY_KEY if not any(name.startswith(f"{path}.") for name in MEANINGS)] == []
