"""Settings with which the model computes something else are refused unless --accept names them."""

from __future__ import annotations

import json

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Derived, Settings
from pretrain.tools.migrate.translation import Dialect, translate
from tools.migrate.megatron.small_training import line_of, migrated

STEPS = "--train-iters 10"


@pytest.mark.parametrize(
    "arguments",
    [
        *("--attention-mask-type general", "--random-ltd", "--lora-r 8", "--freeze-all-layers"),
        *("--window-size 4,1", "--post-norm", "--geglu"),
    ],
)
def test_another_model_has_to_be_accepted(arguments):
    name = arguments.split()[0].removeprefix("--").replace("-", "_")
    with pytest.raises(MigrateError, match=f"Give --accept {name} to write it anyway"):
        migrated(f"{STEPS} {arguments}")
    found = migrated(f"{STEPS} {arguments}", accepted=frozenset([name]))
    assert line_of(found, arguments.split()[0])[0] == "not supported"


@pytest.mark.parametrize(
    ("name", "block"), [("sparse_attention", {"mode": "fixed"}), ("progressive_layer_drop", {"enabled": True})]
)
def test_objects_of_a_deepspeed_file_have_to_be_accepted(name, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(json.dumps({name: block}))
    arguments = f"{STEPS} --deepspeed --deepspeed_config ds.json"
    with pytest.raises(MigrateError, match=f"Give --accept {name} "):
        migrated(arguments, devices=1)
    assert not migrated(arguments, devices=1, accepted=frozenset([name])).is_complete


def test_a_name_that_nothing_refused_has_is_an_error():
    with pytest.raises(MigrateError, match=r"--accept seed: .*\nRefused are: post_norm\."):
        migrated(f"{STEPS} --post-norm", accepted=frozenset(["seed", "post_norm"]))
    with pytest.raises(MigrateError, match="Nothing is refused: leave --accept out"):
        migrated(STEPS, accepted=frozenset(["seed"]))


@pytest.mark.parametrize(("key", "accept"), [("model.normalization", "seed"), ("optimizer.lr", "")])
def test_a_default_of_another_model_has_to_be_accepted_too(key, accept):
    from pretrain.tools.migrate.megatron.meanings import meaning_of
    from pretrain.tools.migrate.programs import program

    lost = Derived(None, (), lost=(("seed", "it is lost"),))
    found = translate(Settings(program("megatron-lm")), Dialect(meaning_of, {key: lambda _: lost}, lambda *_: ({}, [])))
    (line,) = [each for each in found.outcomes if each.text == "it is lost (a default)"]
    assert line.accept == accept


def test_flags_of_speed_alone_have_no_effect():
    found = migrated(f"{STEPS} --use-mc2 --schedules-method dualpipev")
    assert {line_of(found, "--use-mc2")[0], line_of(found, "--schedules-method")[0]} == {"no effect"}


@pytest.mark.parametrize("arguments", ["--linear-attention 1", "--moe-bogus-thing 4", "--mla-x"])
def test_a_flag_that_only_begins_like_others_is_not_known(arguments):
    found = migrated(f"{STEPS} {arguments}")
    assert line_of(found, arguments)[0] == "not known"
    assert not found.is_complete
