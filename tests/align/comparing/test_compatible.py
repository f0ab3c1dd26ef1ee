"""Keys that must be the same in both recipes, which two versions of pretrain may have recorded."""

import pytest

from engine.tiny import tiny
from pretrain.align.comparing.compatible import differing_keys


@pytest.fixture
def recipes():
    return [tiny().model_dump(mode="json") for _ in range(2)]


def test_equal_recipes_do_not_differ(recipes):
    assert differing_keys(*recipes) == ([], [])


@pytest.mark.parametrize("old", [0, 1])
def test_a_key_that_the_older_version_lacks_has_its_default(recipes, old):
    default = recipes[old]["model"].pop("normalization")
    assert differing_keys(*recipes) == ([], [])

    recipes[1 - old]["model"]["normalization"] = "RMSNorm"
    differing, _ = differing_keys(*recipes)
    assert len(differing) == 1
    assert {default, "RMSNorm"} <= set(differing[0].split())


@pytest.mark.parametrize("newer", [0, 1])
def test_a_key_that_only_a_newer_version_knows_is_noted(recipes, newer):
    recipes[newer]["optimizer"]["novel"] = 1

    differing, notes = differing_keys(*recipes)

    assert not differing
    assert "optimizer.novel" in notes[0]
