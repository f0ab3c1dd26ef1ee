"""Command lines of deepy.py: the files that they name, and the settings that they give themselves."""

from __future__ import annotations

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import RuntimeValue, SourceLine, Word
from pretrain.tools.migrate.sources.yaml_files import neox_command, neox_options

PLACE = SourceLine("run.sh", 7)


def words(text):
    return [Word(word, PLACE) for word in text.split()]


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("deepy.py train.py -d configs 20B.yml local_setup.yml", ["configs/20B.yml", "configs/local_setup.yml"]),
        ("./deepy.py train.py -d configs 20B local_setup", ["configs/20B.yml", "configs/local_setup.yml"]),
        ("deepy.py train.py --conf_dir=c 20B", ["c/20B.yml"]),
        ("deepy.py train.py configs/20B.yml tune.json", ["configs/20B.yml", "tune.json"]),
        ("deepy.py train.py a.yml b.yml -H hosts -d c", ["c/a.yml", "c/b.yml"]),
        ("deepy.py train.py -d c /etc/x.yml", ["/etc/x.yml"]),
        ("train.py -d configs 20B.yml", ["configs/20B.yml"]),
    ],
)
def test_files(command, files):
    assert neox_command(words(command)) == files


def test_settings_of_the_command_itself():
    found = neox_options(words("deepy.py train.py -H hosts --wandb_group g a.yml"))
    assert {name: (setting.value, setting.place) for name, setting in found.items()} == {
        "hostfile": ("hosts", PLACE),
        "wandb_group": ("g", PLACE),
    }


@pytest.mark.parametrize("command", ["deepy.py train.py", "deepy.py", "deepy.py train.py a.yml --conf x"])
def test_what_argparse_refuses_is_refused(command):
    with pytest.raises(MigrateError, match=r"^run.sh:7: cannot read this command of GPT-NeoX: "):
        neox_command(words(command))


def test_an_unknown_word_is_asked_for():
    unknown = Word("", PLACE, (RuntimeValue("CONFIG", PLACE, "$CONFIG"),))
    with pytest.raises(MigrateError, match=r"CONFIG is not known \(\$CONFIG\)\.\nGive --define CONFIG=VALUE\."):
        neox_command([*words("deepy.py train.py"), unknown])
