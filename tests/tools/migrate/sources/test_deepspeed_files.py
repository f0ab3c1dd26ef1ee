"""The DeepSpeed file that arguments name: one that the script writes, or one in the working directory or beside it."""

from __future__ import annotations

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import RuntimeValue, SourceLine
from pretrain.tools.migrate.sources.files import MigrateSource, deepspeed_file

NAMED = SourceLine("train.sh", 9)
STAGE = '{\n  "zero_optimization": {"stage": %d}\n}'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scripts").mkdir()
    return tmp_path


def stage(source, path="ds.json"):
    return deepspeed_file(source, path, NAMED).values["zero_optimization.stage"]


def refusal(source, path="ds.json"):
    with pytest.raises(MigrateError) as error:
        deepspeed_file(source, path, NAMED)
    return str(error.value)


def test_a_file_that_the_script_writes_comes_first(folder):
    (folder / "ds.json").write_text(STAGE % 1)
    source = MigrateSource("train.sh", "script", files={"./ds.json": STAGE % 2})
    found = deepspeed_file(source, "ds.json", NAMED)
    assert found.values == {"zero_optimization.stage": 2}
    assert found.places["zero_optimization.stage"] == "train.sh: ds.json:2"


def test_a_file_written_with_unknown_values_is_refused():
    asked = RuntimeValue("ZERO", SourceLine("train.sh", 3), "$ZERO")
    source = MigrateSource("train.sh", "script", unknown_files={"ds.json": (asked, asked)})
    assert refusal(source, "./ds.json") == (
        "train.sh:9: --deepspeed_config: ./ds.json: the script writes unknown values into this file.\n"
        "Give --define ZERO=VALUE, or the finished file as one more source."
    )


def test_a_file_written_by_another_program_is_refused():
    source = MigrateSource("train.sh", "script", unknown_files={"ds.json": ()})
    assert refusal(source).endswith("Give the finished file as one more source.")


def test_it_is_found_in_the_working_directory_or_beside_the_script(folder):
    source = MigrateSource("scripts/train.sh", "script")
    (folder / "scripts" / "ds.json").write_text(STAGE % 3)
    assert stage(source) == 3
    (folder / "ds.json").write_text(STAGE % 3)
    assert stage(source) == 3
    (folder / "ds.json").write_text(STAGE % 1)
    assert "ds.json and scripts/ds.json differ" in refusal(source)


def test_faults_name_the_argument(folder):
    source = MigrateSource("train.sh", "script")
    assert refusal(source).startswith("train.sh:9: --deepspeed_config: ds.json: there is no such file.")
    (folder / "ds.json").write_text("[]")
    assert refusal(source) == (
        "ds.json: a DeepSpeed file must hold one object, {...}.\ntrain.sh:9: --deepspeed_config names this file."
    )
    broken = MigrateSource("train.sh", "script", files={"ds.json": '{\n"fp16": }'})
    assert refusal(broken).startswith("train.sh: ds.json:2: this is not JSON")


def test_no_path_is_no_file():
    assert deepspeed_file(MigrateSource("train.sh", "script"), "") is None
