"""The cell keeps scripts from the machine; what they cannot know in it is asked for."""

from __future__ import annotations

import socket

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.cell import namespaces
from pretrain.tools.migrate.sources.recognition import read_source
from pretrain.tools.migrate.sources.script import read_capture
from tools.migrate.cell.namespaces import needs_cell

TRAINING = "torchrun pretrain_gpt.py --lr 1"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(folder, text, **defined):
    (folder / "train.sh").write_text(text)
    return read_source("train.sh", defined)


def asked(source):
    return [one.name for word in source.words for one in word.asked]


def refusal(folder, text, **defined):
    with pytest.raises(MigrateError) as error:
        script(folder, text, **defined)
    return str(error.value)


@needs_cell
def test_nothing_that_a_script_does_reaches_the_machine(folder):
    (folder / "mine.txt").write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(folder / "socket"))
        local.listen()
        port = server.getsockname()[1]
        text = f"""
rm -f mine.txt; echo x > other.txt; echo x > /tmp/pretrain-escaped; echo x > ~/pretrain-escaped
if (exec 3<>/dev/tcp/127.0.0.1/{port}); then N=1; fi
L=$(python3 -c 'import socket; print(socket.socket(socket.AF_UNIX).connect_ex("socket") or "connected")')
[[ $L == connected ]] || L=no
mount -t tmpfs x /opt && M=1
kill -0 {namespaces.os.getpid()} && K=1
{TRAINING} --network "${{N:-no}}" --socket "${{L:-no}}" --mount "${{M:-no}}" --kill "${{K:-no}}" --mine "$(ls mine.txt)"
"""
        words = [word.text for word in script(folder, text).words]
    assert words[2:] == ["--network", "no", "--socket", "no", "--mount", "no", "--kill", "no", "--mine", ""]
    assert (folder / "mine.txt").read_text() == "mine"
    assert not (folder / "other.txt").exists()
    assert not any((place / "pretrain-escaped").exists() for place in (folder.home(), type(folder)("/tmp")))


@pytest.mark.full
@needs_cell
def test_a_script_without_an_end_is_ended(folder, monkeypatch):
    monkeypatch.setattr(namespaces, "SECONDS", 2)
    assert "did not end within 2 seconds" in refusal(folder, f"while true; do :; done\n{TRAINING}\n")


@needs_cell
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("N=$(scontrol show hostnames | wc -l)\nX --nnodes $N", ["N"]),
        ("N=$(scontrol show hostnames | wc -l)\nM=$(echo $N | wc -c)\nX --nodes $M", ["N"]),
        ("N=$SLURM_NNODES\nX --global-batch-size $((N * 8))", ["SLURM_NNODES"]),
        ("X --data-path <Specify path>/x", ["<Specify path>"]),
        ("DATA=<path to data>\nX --data-path $DATA", ["DATA"]),
        ("export LR\nsrun bash -c 'X --lr $LR'", ["LR"]),
        ("X --save $1 --load ${SAVE:-here}", ["1"]),
    ],
)
def test_values_that_are_not_known_are_asked_for(folder, text, names):
    assert list(dict.fromkeys(asked(script(folder, text.replace("X", TRAINING) + "\n")))) == names


@needs_cell
def test_conditions_on_what_is_not_known_are_asked_for(folder):
    text = f"[[ $(scontrol x) == a* ]] && LR=1 || LR=2\n{TRAINING} --lr $LR\n"
    assert "train.sh:1: scontrol is not known: depends on [[ $(scontrol x) == a* ]]" in refusal(folder, text)
    assert script(folder, text, scontrol="abc").words[-1].text == "1"
    text = f'if [ "$MODE" = debug ]; then LR=1; fi\n{TRAINING}\n'
    assert "MODE is not known: depends on" in refusal(folder, text)
    assert asked(script(folder, text, MODE="")) == []
    assert asked(script(folder, f'if [ -n "$DEBUG" ]; then echo; fi\n{TRAINING}\n')) == []


def test_without_a_cell_the_other_way_is_told(folder, monkeypatch):
    monkeypatch.setattr(namespaces, "_NEEDED", ("bash", "no-such-program"))
    said = refusal(folder, f"{TRAINING}\n")
    assert "there is no no-such-program" in said
    assert said.endswith("pretrain migrate --capture -- bash train.sh")


@needs_cell
def test_a_command_is_captured(folder):
    (folder / "train.sh").write_text(
        f"echo x > written\npython -c 'print(3)' > three\n{TRAINING} --seed $(cat three)\n"
    )
    source = read_capture(("bash", "train.sh"))
    assert [word.text for word in source.words] == ["--lr", "1", "--seed", "3"]
    assert (folder / "written").exists()
