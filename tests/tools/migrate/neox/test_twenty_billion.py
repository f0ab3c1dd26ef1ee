"""GPT-NeoX-20B's settings give the values of recipes/neox20b.yml."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pretrain.recipe.section import as_number
from pretrain.tools.migrate.migration import migrate
from pretrain.tools.migrate.neox.meanings import MEANINGS
from pretrain.tools.migrate.neox.objects import flat
from pretrain.tools.migrate.programs import programs
from pretrain.tools.migrate.setting import MigrateOptions
from pretrain.tools.migrate.sources.recognition import read_sources
from pretrain.tools.migrate.sources.yaml_files import read_neox

SEED = Path(__file__).parent.parent / "seeds" / "seed3.yml"
RECIPE = Path(__file__).parents[4] / "recipes" / "neox20b.yml"

ELSEWHERE = {"tokenizer.file", "data.path", "kernels.attention", "kernels.triangle_block_size"}
"""Paths, and the kernel that another program's port takes."""


@pytest.fixture(scope="module")
def migrated():
    return migrate(read_sources([str(SEED)], {}), MigrateOptions(devices=96))


def test_every_value_of_the_recipe_is_worked_out_or_carried(migrated):
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    wanted = {f"{section}.{key}": as_number(value) for section, keys in recipe.items() for key, value in keys.items()}
    found = migrated.recipe.model_dump()
    here = {key: found[key.partition(".")[0]][key.partition(".")[2]] for key in wanted}
    assert {key: here[key] for key in wanted.keys() - ELSEWHERE} == {
        key: wanted[key] for key in here.keys() - ELSEWHERE
    }


def test_every_setting_has_one_line_in_the_report(migrated):
    stated = flat(read_neox([SEED]).settings)
    assert [outcome.written for outcome in migrated.outcomes] == [setting.written for setting in stated.values()]


def test_every_flag_of_every_version_has_a_meaning():
    names = {name for each in programs().values() if each.dialect == "neox" for name in each.flags}
    assert sorted(names - set(MEANINGS)) == []
