"""A recipe that names a DeepSpeed file."""

from __future__ import annotations

import copy
import json

import pytest
import yaml

from pretrain.errors import RecipeError
from pretrain.recipe import load_recipe
from recipe.smallest import SMALLEST


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load recipe.yml, the smallest one with the keys of `more`, which names ds.json: text, or data a key a line."""
    monkeypatch.chdir(tmp_path)

    def write_and_load(config, *overrides, without=(), **more):
        recipe = copy.deepcopy(SMALLEST)
        for section, keys in more.items():
            recipe.setdefault(section, {}).update(keys)
        for path in without:
            section, key = path.split(".")
            del recipe[section][key]
        recipe.setdefault("engine", {})
        recipe["engine"] = {"name": "deepspeed", "deepspeed_config": "ds.json"} | recipe["engine"]
        (tmp_path / "recipe.yml").write_text(yaml.safe_dump(recipe, sort_keys=False))
        (tmp_path / "ds.json").write_text(config if isinstance(config, str) else json.dumps(config, indent=0))
        return load_recipe("recipe.yml", overrides)

    return write_and_load


@pytest.fixture
def refused(load):
    """Return the lines with which what `load` takes is refused."""

    def refuse(config, *overrides, **more):
        with pytest.raises(RecipeError) as caught:
            load(config, *overrides, **more)
        return str(caught.value).splitlines()

    return refuse
