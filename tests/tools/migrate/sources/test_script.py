"""Shell scripts and texts of arguments become sources, with the files that their commands name."""

from __future__ import annotations

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.sources.recognition import read_source
from pretrain.tools.migrate.sources.script import names_read, read_arguments


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(folder, text, **defined):
    (folder / "train.sh").write_text(text)
    return read_source("train.sh", defined)


def refusal(folder, text):
    with pytest.raises(MigrateError) as error:
        script(folder, text)
    return str(error.value)


def texts(words):
    return [word.text for word in words]


def test_arguments_alone():
    source = read_arguments("--num-layers 24 --data-path '0.3 a'")
    assert texts(source.words) == ["--num-layers", "24", "--data-path", "0.3 a"]
    assert (source.name, source.kind, source.program, str(source.words[0].place)) == (
        "--args",
        "arguments",
        "",
        "--args",
    )


def test_a_whole_command_as_arguments():
    source = read_arguments("torchrun --nproc_per_node 8 pretrain_gpt.py --fp16")
    assert (source.program, texts(source.words), source.launch.nproc) == ("pretrain_gpt.py", ["--fp16"], 8)
    preprocessing = read_arguments("python tools/preprocess_data.py --input a").preprocessing
    assert [texts(words) for words in preprocessing] == [["--input", "a"]]


def test_arguments_take_definitions():
    source = read_arguments("--lr $LR --load ${FOLDER}", {"LR": "1"})
    assert texts(source.words) == ["--lr", "1", "--load", ""]
    assert source.read_names == {"LR", "FOLDER"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "--args is empty"),
        ("python pretrain_bert.py", "trains BERT"),
        ("lr=1", "starts no training"),
    ],
)
def test_other_texts_are_refused(text, what):
    with pytest.raises(MigrateError, match=what):
        read_arguments(text)


def test_a_script_with_preprocessing_and_another_program(folder):
    source = script(
        folder,
        "python tools/preprocess_data.py --input a --vocab b\n"
        "torchrun pretrain_gpt.py --lr 1\n"
        "python tasks/main.py --task X\n",
    )
    assert texts(source.words) == ["--lr", "1"]
    assert [texts(words) for words in source.preprocessing] == [["--input", "a", "--vocab", "b"]]
    assert source.notices == ("train.sh:3: tasks/main.py runs a downstream task; it is ignored",)


def test_slurms_comments_count_processes(folder):
    text = (
        "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun python pretrain_gpt.py --x $SLURM_NNODES\n"
    )
    source = script(folder, text)
    assert (source.launch.nproc, source.launch.nnodes) == (8, 4)
    assert texts(source.words) == ["--x", "4"]
    assert source.notices == ("train.sh:2: SLURM_NNODES is taken as 4, which --nodes says",)
    given = script(folder, text, SLURM_NNODES="2")
    assert texts(given.words) == ["--x", "2"]
    assert given.notices == ()


@pytest.mark.parametrize(
    "command",
    [
        "sbatch -N 2 --wrap '{}'",
        'sbatch --wrap="{}"',
        "ssh -p 22 host 'cd x && {}'",
        'for host in a b; do ssh $host "{}" & done',
    ],
)
def test_commands_that_another_machine_gets_are_read(folder, command):
    source = script(folder, command.format("torchrun --nproc_per_node 8 pretrain_gpt.py --lr 1") + "\n")
    assert (source.program, texts(source.words), source.launch.nproc) == ("pretrain_gpt.py", ["--lr", "1"], 8)
    assert str(source.words[0].place) == "train.sh:1"


def test_values_of_commands_that_another_machine_gets_are_asked_for(folder):
    text = "ssh host 'torchrun pretrain_gpt.py --lr $LR'\n"
    assert [asked.name for word in script(folder, text).words for asked in word.asked] == ["LR"]
    assert texts(script(folder, text, LR="1").words) == ["--lr", "1"]
    here = script(folder, 'ssh host "torchrun pretrain_gpt.py --lr $LR"\n')
    assert [asked.name for word in here.words for asked in word.asked] == ["LR"]


def test_gpt_neox_files_are_read(folder):
    (folder / "configs").mkdir()
    (folder / "configs" / "a.yml").write_text("num-layers: 2\n")
    (folder / "configs" / "b.yml").write_text("data-path: x\n")
    source = script(folder, "python ./deepy.py train.py -d configs a b.yml")
    assert (source.name, source.kind, source.program) == ("train.sh", "neox", "train.py")
    assert {name: setting.value for name, setting in source.settings.items()} == {"num_layers": 2, "data_path": "x"}
    assert str(source.settings["data_path"].place) == "configs/b.yml:1"
    assert source.launch is None


def test_processes_of_gpt_neox_are_the_launchers_or_those_of_its_settings(folder):
    (folder / "a.yml").write_text("num-layers: 2\nnum_gpus: 4\nnum_nodes: 2\n")
    own = script(folder, "python ./deepy.py train.py a.yml -H hosts").launch
    assert (own.nproc, own.nnodes, own.hostfile, str(own.place)) == (4, 2, "hosts", "a.yml:2")
    outer = script(folder, "srun -N 3 --ntasks-per-node 8 python ./deepy.py train.py a.yml").launch
    assert (outer.nproc, outer.nnodes, outer.place.source) == (8, 3, "train.sh")


def test_a_missing_file_of_gpt_neox_is_named(folder):
    said = refusal(folder, "\npython ./deepy.py train.py -d configs a.yml")
    assert said.startswith("train.sh:2: configs/a.yml does not exist.")


def test_yaml_cfg_takes_the_place_of_all_flags(folder):
    (folder / "gpt.yaml").write_text("language_model: {activation_func: gelu}\nlr: 1\n")
    source = script(folder, "torchrun --nproc_per_node 4 pretrain_gpt.py --lr 3 --yaml-cfg gpt.yaml")
    assert (source.kind, source.words, source.settings["lr"].value, source.launch.nproc) == ("megatron_yaml", (), 1, 4)
    assert source.notices == (
        "train.sh:1: --yaml-cfg: only gpt.yaml is read; Megatron-LM ignores all other flags with it",
    )
    with pytest.raises(MigrateError, match="does not exist"):
        script(folder, "torchrun pretrain_gpt.py --yaml-cfg=other.yaml")


def test_a_flag_that_a_missing_backslash_cuts_off_is_said(folder):
    source = script(folder, "python pretrain_gpt.py --lr 1 \\\n# --clip-grad 2\n --weight-decay 0.3\n")
    assert texts(source.words) == ["--lr", "1"]
    (notice,) = source.notices
    assert notice.startswith("train.sh:3: --weight-decay is not passed on: the line before has no backslash")


TRAINING = "torchrun pretrain_gpt.py --lr 1\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a $LR b", {"LR"}),
        ("${LR:-3} ${#TEXT} ${!REFERENCE}", {"LR", "TEXT", "REFERENCE"}),
        ("LR=3\nexport SIZE=4\nLIST+=(x)", {"LR", "SIZE", "LIST"}),
        ("echo $((NODES * GPUS))", {"NODES", "GPUS"}),
        ("if [[ -v DEBUG ]]; then :; fi", {"DEBUG"}),
        ("for i in 1; do test $i -eq COUNT; done", {"i", "COUNT"}),
        ("no names", set()),
    ],
)
def test_variables(text, names):
    assert names <= names_read("a.sh", text, {})
    assert "OTHER" not in names_read("a.sh", text, {"OTHER": ""})


@pytest.mark.parametrize(
    ("text", "read", "unread"),
    [
        ("x $1", {"1", "@"}, {"2"}),
        ("x ${12}", {"12"}, {"1"}),
        ('x "$@"', {"1", "2", "@"}, set()),
        ("A=$1; shift", {"1", "2"}, set()),
        ("x", set(), {"1", "@"}),
    ],
)
def test_arguments_of_a_script(text, read, unread):
    found = names_read("a.sh", text, dict.fromkeys(("1", "2", "12", "@"), ""))
    assert read <= found
    assert not unread & found


@pytest.mark.parametrize("line", ["source env.sh", ". ./env.sh", 'source "$HERE/env.sh"', "true; source env.sh"])
def test_names_of_files_that_are_sourced_count(tmp_path, line):
    (tmp_path / "env.sh").write_text("SIZE=${SIZE:-3}\n")
    assert {"SIZE"} <= names_read(str(tmp_path / "a.sh"), line, {}) <= {"SIZE", "HERE"}


def test_where_a_file_is_not_there_every_definition_may_be_read():
    assert "ANY" in names_read("a.sh", "source somewhere.sh", {"ANY": ""})


def test_sources_have_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sh").write_text(f"N=$1\n{TRAINING} --x $LR\n")
    (tmp_path / "args").write_text("--lr $LR")
    (tmp_path / "gpt.yaml").write_text("language_model: {activation_func: gelu}\nload: ${FOLDER}\n")
    (tmp_path / "b.sh").write_text(f"{TRAINING.strip()} --yaml-cfg gpt.yaml --x $LR\n")
    (tmp_path / "x.yml").write_text("num-layers: 2\npos-emb: rotary\n")
    defined = {"FOLDER": "x", "1": "y", "OTHER": ""}
    found = {name: read_source(name, defined).read_names for name in ("a.sh", "args", "gpt.yaml", "b.sh", "x.yml")}
    assert found == {
        "a.sh": {"N", "1", "@", "LR"},
        "args": {"LR"},
        "gpt.yaml": {"FOLDER"},
        "b.sh": {"LR", "FOLDER"},
        "x.yml": frozenset(),
    }
