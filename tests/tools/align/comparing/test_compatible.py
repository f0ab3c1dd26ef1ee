"""Keys that must be the same in both recipes, which two versions of pretrain may have recorded."""

import pytest

from engine.tiny import tiny
from pretrain.tools.align.comparing.compare import differing_keys, other_keys


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


def test_positions_and_masks_of_documents_must_be_the_same(recipes):
    recipes[1]["data"]["reset_position_ids"] = True

    assert differing_keys(*recipes)[0] == ["data.reset_position_ids False and True"]


@pytest.mark.parametrize(("key", "values"), [("fp8", ("rowwise", "block")), ("fp8_wgrad", (True, False))])
def test_operands_must_be_rounded_alike(recipes, key, values):
    for recipe, value in zip(recipes, values, strict=True):
        recipe["precision"][key] = value

    assert differing_keys(*recipes)[0] == [f"precision.{key} {values[0]} and {values[1]}"]


def test_dtypes_may_differ_but_not_beside_fp8(recipes):
    recipes[1]["precision"]["dtype"] = "bf16"
    assert differing_keys(*recipes)[0] == []

    for recipe in recipes:
        recipe["precision"]["fp8"] = "rowwise"
    assert differing_keys(*recipes)[0] == ["precision.dtype fp32 and bf16 with fp8"]


def test_all_other_keys_that_differ_are_noted_in_one_line(recipes):
    assert other_keys(*recipes) == []

    recipes[1]["precision"]["grad_reduce_in_fp32"] = "changed"
    recipes[1]["engine"]["zero"]["stage"] = 3
    del recipes[1]["parallel"]["sequence_parallel"]  # an older version's, which counts as the default

    assert other_keys(*recipes) == [
        "the recipes differ in precision.grad_reduce_in_fp32 False and changed; engine.zero.stage 0 and 3"
    ]
