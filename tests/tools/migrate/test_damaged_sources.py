"""Damaged sources are clear errors, or become recipes in whose report no flag is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pretrain.errors import PretrainError
from pretrain.recipe import make_recipe
from pretrain.tools.migrate.migration import migrate
from pretrain.tools.migrate.setting import MigrateOptions
from pretrain.tools.migrate.sources.recognition import read_sources

SEEDS = Path(__file__).parent / "seeds"
DEFINED = {"CORPORA": "data", "CACHES": "data", "1": "checkpoints", "2": "board", "3": "vocab.json", "4": "merges.txt"}
EXAMPLES = int(os.environ.get("PRETRAIN_DAMAGED_SOURCES", "12"))
"""For each source; 5,000 over all were run once."""

SIGNS = "${}()[]\"'\\\n;|&<>=#`-:, a1"


@st.composite
def damaged(draw, text: str) -> str:
    """A text with a part cut out, moved, doubled, or replaced by signs."""
    start = draw(st.integers(0, len(text) - 1))
    length = draw(st.integers(0, 40))
    part = text[start : start + length]
    put = draw(st.one_of(st.text(SIGNS, max_size=4), st.just(part + part), st.just("")))
    other = draw(st.integers(0, len(text)))
    rest = text[:start] + put + text[start + length :]
    return rest[:other] + draw(st.sampled_from(["", part])) + rest[other:]


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(path.name for path in SEEDS.iterdir() if "preprocess" not in path.name))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_is_a_clear_error_or_a_recipe_that_loads(tmp_path_factory, name, data):
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "deepspeed_config.json").write_text((SEEDS / "deepspeed_config.json").read_text())
    path = folder / name
    path.write_text(data.draw(damaged((SEEDS / name).read_text())))
    names = [str(SEEDS / "seed2_zero3.sh"), str(path)] if name.endswith(".json") else [str(path)]
    try:
        sources = read_sources(names, DEFINED)
        found = migrate(sources, MigrateOptions(devices=96, as_meant=data.draw(st.booleans())))
    except PretrainError as error:
        lines = str(error).splitlines()
        assert all(line.strip() for line in lines)
        assert len(lines) <= 10
        return
    assert make_recipe(yaml.safe_load(found.text)) == found.recipe
    said = {outcome.written.partition(" ")[0].partition("=")[0] for outcome in found.outcomes}
    stated = {word.text.partition("=")[0] for source in sources for word in source.words if word.text.startswith("--")}
    assert stated <= said
    for source in sources:
        assert all(_is_said(setting.written, said) for setting in source.settings.values() if source.kind == "neox")


def _is_said(written: str, said: set[str]) -> bool:
    return any(one == written or one.startswith(f"{written}.") for one in said)
