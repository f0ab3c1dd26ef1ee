"""`pretrain run`: everything up to the training, which is faked here."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from unittest.mock import patch

import pytest

from plugins.fake_site import reference, site
from pretrain.cli.main import main
from pretrain.data.corpus.build import build_tokens
from pretrain.errors import DataError
from pretrain.exit_codes import End
from pretrain.launch.processes.failure import Failure
from pretrain.recipe import load_recipe, to_yaml

__all__ = ["reference", "site"]

RECIPE = """
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, seq_length: 8}
tokenizer: {type: bytes}
data: {path: corpus, split: "80,10,10"}
train: {micro_batch_size: 1, global_batch_size: 4, train_iters: 10}
optimizer: {lr: 0.001}
"""
ONE_TASK_A_NODE = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch, site):
    """A working directory with a recipe, with one device, outside of any launcher."""
    site.backend("fake")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yml").write_text(RECIPE)
    (tmp_path / "text.jsonl").write_text('{"text": "some words"}\n' * 20)
    section = load_recipe(tmp_path / "tiny.yml").tokenizer
    build_tokens([Path("text.jsonl")], Path("corpus"), section, workers=1)
    Path("text.jsonl").unlink()
    kept = {name: value for name, value in os.environ.items() if name not in TORCHRUN and "SLURM" not in name}
    with patch.dict(os.environ, kept, clear=True):
        yield tmp_path


def files(folder):
    """Return what is in a folder, but for bytecode that Python keeps of the fake backend."""
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


@pytest.fixture
def trainings(monkeypatch):
    """What the training was called with; it writes recipe.yml, or raises what is in `error`."""
    calls = []

    def train(recipe, **options):
        calls.append({"recipe": recipe, **options})
        if trainings.error:
            raise trainings.error
        options["run_dir"].mkdir(parents=True, exist_ok=True)
        (options["run_dir"] / "recipe.yml").write_text(to_yaml(recipe))
        return End()

    trainings = types.SimpleNamespace(calls=calls, error=None)
    monkeypatch.setitem(sys.modules, "pretrain.training.run", types.SimpleNamespace(train=train))
    return trainings


@pytest.fixture
def call(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["tiny.yml", "--backend", "fake", *arguments])
        return ended.value.code, *capsys.readouterr()

    return run


def test_a_recipe_trains_in_a_new_run_directory(call, trainings):
    assert call() == (0, "", "")
    (training,) = trainings.calls
    assert training["recipe"] == load_recipe("tiny.yml")
    assert (training["backend_name"], training["resume"]) == ("fake", False)
    assert (training["world"].rank, training["world"].world_size) == (0, 1)
    assert training["run_dir"].parent == Path("runs")
    assert training["run_dir"].name.startswith("tiny-")


def test_overrides_and_the_run_directory_are_passed_on(call, trainings):
    assert call("--set", "model.num_layers=3", "--set", "train.train_iters=5", "--run-dir", "here")[0] == 0
    (training,) = trainings.calls
    assert (training["recipe"].model.num_layers, training["recipe"].train.train_iters) == (3, 5)
    assert training["run_dir"] == Path("here")


def test_a_run_directory_is_used_twice_only_to_resume(call, trainings):
    call("--run-dir", "here")
    code, _, err = call("--run-dir", "here")
    assert code == 2
    assert "--resume" in err
    assert "another --run-dir" in err
    assert len(trainings.calls) == 1
    assert call("--run-dir", "here", "--resume")[0] == 0
    assert trainings.calls[1]["resume"] is True


@pytest.mark.parametrize("words", [["--resume", "auto"], ["--resume=auto"]])
def test_resume_auto_starts_a_run_and_then_continues_it(call, trainings, words):
    for _ in range(2):
        assert call("--run-dir", "here", *words)[0] == 0
    assert [training["resume"] for training in trainings.calls] == [False, True]


@pytest.fixture
def nodes(monkeypatch):
    """Nodes and ranks here of each run that would have joined others."""
    placements = []
    monkeypatch.setattr("pretrain.launch.start._start_with_others", lambda placed, *_: placements.append(placed))
    return lambda: [(each.nodes.count, each.nodes.rank, each.nodes.rendezvous, each.nproc) for each in placements]


def test_one_task_of_srun_on_each_node_starts_the_ranks_there(call, nodes, monkeypatch):
    for name, value in ONE_TASK_A_NODE.items():
        monkeypatch.setenv(name, value)
    code, _, err = call("--nproc", "2", "--nnodes", "2")
    assert (code, err) == (0, "node 1 of 2, by the variables of srun; rendezvous gpu07:10077\n")
    call("--nproc", "2", "--max-restarts", "3")
    call("--nnodes", "2", "--nproc", "2", "--rdzv", "gpu07:29500", "--node-rank", "0")
    call("--nnodes", "4", "--nproc", "2", "--rdzv", "other:29500")  # what the user says wins
    mine = (2, 1, "gpu07:10077", 2)
    assert nodes() == [mine, mine, (2, 0, "gpu07:29500", 2), (4, None, "other:29500", 2)]


def test_several_tasks_of_srun_on_a_node_are_told_how_to_be_one(call, monkeypatch):
    for name, value in (ONE_TASK_A_NODE | {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}).items():
        monkeypatch.setenv(name, value)
    code, _, err = call("--nproc", "2", "--nnodes", "2")
    assert (code, "srun --ntasks-per-node=1" in err) == (2, True)


def test_a_pod_of_a_pytorchjob_is_a_node_without_options(call, nodes, monkeypatch):
    pod = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "2", "MASTER_PORT": "23456"}
    for name, value in (pod | {"MASTER_ADDR": "job-master-0", "RANK": "0", "WORLD_SIZE": "4"}).items():
        monkeypatch.setenv(name, value)
    assert call()[0] == 0
    assert call("--nproc", "1")[0] == 0
    assert nodes() == [(2, 0, "job-master-0:23456", 2), (2, 0, "job-master-0:23456", 1)]


def test_resume_takes_no_other_word_for_its_value(trainings, call):
    call("--run-dir", "here")
    with pytest.raises(SystemExit) as ended:
        main(["--run-dir", "here", "--resume", "tiny.yml", "--backend", "fake"])
    assert (ended.value.code, trainings.calls[1]["resume"]) == (0, True)
    assert call("--resume=always", "--run-dir", "here")[0] == 2


def test_the_former_name_of_resume_auto_is_answered(call):
    assert "--auto-resume: it is --resume auto now." in call("--auto-resume")[2].splitlines()


def test_restarts_of_ranks_that_another_program_started_are_refused(call, trainings, monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    code, _, err = call("--max-restarts", "3")
    assert code == 2
    assert err.startswith("--max-restarts: this is rank 0 of 1, started by torchrun, srun or mpirun, which alone can")
    assert "Leave it out and pass --run-dir DIR --resume auto" in err
    assert trainings.calls == []


def test_fewer_nodes_are_about_restarts_and_fewer_than_all(call):
    assert "Pass --max-restarts N as well" in call("--allow-fewer-nodes", "1")[2]
    nodes = ("--max-restarts", "1", "--nnodes", "2", "--rdzv", "a:1")
    assert "--allow-fewer-nodes 2 is not below the number of nodes, 2." in call(*nodes, "--allow-fewer-nodes", "2")[2]


def test_there_must_be_a_run_to_resume(call, trainings):
    assert "pass --run-dir" in call("--resume")[2]
    assert "--resume auto needs a folder that is the same each time" in call("--resume=auto", "--nnodes", "2")[2]
    assert "holds no run to resume" in call("--resume", "--run-dir", "here")[2]
    assert trainings.calls == []


def test_a_training_that_fails_at_once_leaves_no_empty_directory(call, trainings, workplace):
    trainings.error = DataError("corpus.idx is missing.\nBuild it.")
    assert call() == (2, "", "corpus.idx is missing.\nBuild it.\n")
    assert list((workplace / "runs").iterdir()) == []


def test_the_corpus_is_built_before_the_training_and_only_where_the_recipe_has_one(call, trainings, monkeypatch):
    from pretrain.data.corpus import recipe_corpus

    built = []
    monkeypatch.setattr(recipe_corpus, "prepare_corpus", lambda recipe: built.append(len(trainings.calls)))
    call()
    assert built == []
    assert call("--set", "data.corpus={source: python_stdlib}")[0] == 0
    assert built == [1]


def test_a_corpus_that_cannot_be_built_starts_nothing(call, trainings, monkeypatch, workplace):
    from pretrain.data.corpus import recipe_corpus

    def fail(recipe):
        raise DataError("no source text")

    monkeypatch.setattr(recipe_corpus, "prepare_corpus", fail)
    assert call("--set", "data.corpus={source: python_stdlib}") == (2, "", "no source text\n")
    assert trainings.calls == []
    assert not (workplace / "runs").exists()


def test_a_dry_run_shows_recipe_layout_and_size_and_writes_nothing(call, trainings, workplace):
    before = files(workplace)
    code, out, err = call("--dry-run", "--nproc", "2", "--set", "parallel.tensor_model_parallel_size=2")
    assert (code, err) == (0, "")
    (workplace / "shown.yml").write_text(out)
    assert load_recipe("shown.yml") == load_recipe("tiny.yml", ["parallel.tensor_model_parallel_size=2"])
    (workplace / "shown.yml").unlink()
    assert "# ranks: 2 = tensor 2 x pipeline 1 x data 1\n" in out
    assert "# batch: 4 samples = micro batch 1 x data 1 x 4 micro batches a step\n" in out
    # vocabulary 257 -> 512: 512 x 16, positions 8 x 16, 2 layers of 12 h^2 + 13 h, final norm 2 h
    assert f"# parameters: {8192 + 128 + 2 * (12 * 256 + 13 * 16) + 32:,}, vocabulary padded to 512\n" in out
    assert trainings.calls == []
    assert files(workplace) == before


def test_a_dry_run_shows_how_a_deepspeed_file_was_understood(call, workplace):
    (workplace / "ds.json").write_text('{"steps_per_print": 10}')
    code, out, err = call("--dry-run", "--set", "engine={name: deepspeed, deepspeed_config: ds.json}")
    assert (code, err) == (0, "")
    assert "\n# ds.json:1: steps_per_print: 10 is not used; " in out


def test_a_dry_run_needs_no_device_and_says_that_there_is_none(call, site):
    site.backend("absent", availability="Unavailable('out of order', 'Fix it.')")
    options = ("--backend", "absent", "--set", "parallel.tensor_model_parallel_size=2")
    code, out, _ = call("--dry-run", *options)
    assert code == 0
    assert "\n# backend 'absent' (pretrain-absent 1.0) has no usable device: out of order\n# ranks: 2 = tensor 2" in out
    assert call(*options)[0] == 2


def test_a_dry_run_looks_at_the_files_and_names_all_that_are_missing(call):
    code, out, err = call(
        *("--dry-run", "--set", "tokenizer={type: huggingface, file: absent.json}"),
        *("--set", "data.blend=[{weight: 1, path: corpus}, {weight: 1, path: nothing}]"),
        *("--set", "checkpoint.load=nowhere"),
    )
    assert code == 2
    assert "without the vocabulary's, which is unknown: " in out
    assert err.splitlines() == [
        "2 inputs are missing or damaged; paths are relative to the working directory.",
        "tokenizer file absent.json cannot be read: No such file or directory.",
        "token file nothing.idx is missing.",
        "checkpoint.load: nowhere holds no checkpoint (latest_checkpointed_iteration.txt is missing).",
        "Name the folder that holds iter_* folders, such as RUN/checkpoints, or another program's checkpoint.",
    ]


def test_a_dry_run_says_of_one_missing_file_what_to_do(call, workplace):
    (workplace / "corpus.bin").write_bytes(b"")
    code, out, err = call("--dry-run")
    assert (code, "# ranks: 1" in out) == (2, True)
    assert err.startswith("corpus.bin is truncated: ")
    assert len(err.splitlines()) > 1


def test_a_dry_run_knows_a_folder_that_the_run_itself_will_fill(call, workplace):
    both = ("--set", "checkpoint.load=kept", "--set", "checkpoint.save=kept")
    assert call("--dry-run", *both)[0] == 0
    (workplace / "kept" / "mp_rank_00").mkdir(parents=True)
    (workplace / "kept" / "mp_rank_00" / "model_optim_rng.pt").touch()
    code, _, err = call("--dry-run", *both)
    assert (code, "model_optim_rng.pt is damaged, or not a file of torch.save" in err) == (2, True)


def test_a_dry_run_says_what_the_run_will_build(call):
    tokenizer = "tokenizer={type: huggingface, file: new.json, vocab_size: 300}"
    corpus = ("--set", "data={path: new, corpus: {source: python_stdlib}}", "--set", tokenizer)
    code, out, err = call("--dry-run", *corpus)
    assert (code, err) == (0, "")
    assert out.endswith("# data: the run builds new and new.json from python_stdlib, since they are absent\n")


def test_a_dry_run_looks_at_the_run_directory(call):
    code, _, err = call("--dry-run", "--resume", "--run-dir", "here")
    assert (code, err.splitlines()[0]) == (2, "--run-dir here holds no run to resume (no recipe.yml).")


def test_ranks_that_do_not_fit_are_an_error_before_anything_starts(call, trainings):
    code, _, err = call("--nproc", "3", "--set", "parallel.tensor_model_parallel_size=2")
    assert code == 2
    assert "3 ranks cannot hold" in err


def test_by_default_there_are_as_many_ranks_as_the_model_needs(call):
    assert (
        "# ranks: 4 = tensor 2 x pipeline 2"
        in call(
            "--dry-run",
            "--set=parallel.tensor_model_parallel_size=2",
            "--set=parallel.pipeline_model_parallel_size=2",
        )[1]
    )
    assert "# ranks: 1 = " in call("--dry-run", "--nproc", "auto")[1]


EIGHT = "FakeBackend.device_count = lambda self: 8"
WIDE = ("--set", "model.num_attention_heads=16", "--set", "model.hidden_size=64")


@pytest.mark.parametrize(
    ("settings", "ranks", "notice"),
    [
        (["train.global_batch_size=8"], 8, ""),
        ([], 4, "4 of 8 devices are used: global_batch_size 4 and a model-parallel size of 1 fit no more (--nproc and"),
        (["train.global_batch_size=9", "train.micro_batch_size=3"], 3, "3 of 8 devices are used: global_batch_size 9"),
        (["parallel.tensor_model_parallel_size=2"], 8, ""),
        (
            ["parallel.tensor_model_parallel_size=2", "train.global_batch_size=6"],
            6,
            "6 of 8 devices are used: global_batch_size 6 and a model-parallel size of 2 fit no more",
        ),
    ],
)
def test_by_default_as_many_devices_are_used_as_the_recipe_fits(call, site, settings, ranks, notice):
    site.backend("eight", EIGHT)
    words = [word for setting in settings for word in ("--set", setting)]
    code, out, _ = call("--dry-run", "--backend", "eight", *words)
    assert (code, f"# ranks: {ranks} = " in out) == (0, True)
    assert (notice in out) if notice else ("devices are used" not in out)


def test_a_number_of_ranks_that_was_asked_for_is_taken_or_refused(call, site):
    site.backend("eight", EIGHT)
    code, _, err = call("--backend", "eight", "--nproc", "8")
    assert (code, "train.global_batch_size 4 is not a multiple of train.micro_batch_size 1 x data" in err) == (2, True)


def test_if_no_number_of_devices_fits_the_error_counts_all_of_them(call, site):
    site.backend("eight", EIGHT)
    code, _, err = call("--backend", "eight", "--set", "parallel.tensor_model_parallel_size=16", *WIDE)
    assert (code, "8 ranks cannot hold tensor_model_parallel_size 16" in err) == (2, True)


def test_a_run_says_on_how_many_devices_it_is(call, site, trainings, monkeypatch):
    site.backend("eight", EIGHT)
    monkeypatch.setattr("pretrain.launch.start.run_ranks", lambda job, worlds, rendezvous=None: None)
    code, out, _ = call("--backend", "eight")
    assert (code, out.startswith("4 of 8 devices are used: ")) == (0, True)


@pytest.mark.parametrize("nproc", ["0", "-1", "many", "1.5"])
def test_a_number_of_ranks_is_positive_or_auto(call, nproc):
    code, _, err = call("--nproc", nproc)
    assert code == 2
    assert "neither a positive number nor 'auto'" in err


def test_a_device_that_is_not_there_is_an_error(call, site, trainings):
    site.backend("gone", availability="Unavailable('the driver is missing', 'Install it.')")
    code, _, err = call("--backend", "gone")
    assert code == 2
    assert "the driver is missing\nInstall it." in err
    assert trainings.calls == []


def test_a_user_error_of_a_rank_is_shown_as_a_user_error(call, monkeypatch):
    failure = Failure(rank=1, when=0.0, exit_code=2, text="bad data\nFix it.")
    monkeypatch.setattr("pretrain.launch.start.run_ranks", lambda job, worlds, rendezvous=None: failure)
    assert call("--nproc", "2") == (2, "", "rank 1: bad data\nFix it.\n")


def test_the_crash_of_a_rank_is_shown_with_its_traceback(call, monkeypatch):
    failure = Failure(rank=1, when=0.0, exit_code=1, text="Traceback ...\nValueError: bug")
    monkeypatch.setattr("pretrain.launch.start.run_ranks", lambda job, worlds, rendezvous=None: failure)
    assert call("--nproc", "2") == (1, "", "rank 1 failed:\nTraceback ...\nValueError: bug\n")


def test_a_rank_that_torchrun_started_only_trains(call, trainings, monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert call("--run-dir", "here")[0] == 0
    (training,) = trainings.calls
    assert training["world"].master_port == 29500
    assert training["run_dir"] == Path("here").absolute()


def test_a_rank_that_torchrun_started_starts_no_others(call, trainings, monkeypatch, workplace):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    code, _, err = call("--nproc", "2")
    assert code == 2
    assert "--nproc, --nnodes, --rdzv and --node-rank have no effect" in err
    (workplace / "hosts").write_text("node1 slots=2\n")
    assert call("--hostfile", "hosts")[2] == err
    assert trainings.calls == []


def test_flags_of_other_programs_are_answered_all_at_once(call):
    code, out, err = call("--train-iters", "5000", "--data-impl", "mmap", "--nproc_per_node=4", "--nprc", "2")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "--train-iters: here it is --set train.train_iters=5000.",
        "--data-impl: not needed: token files are always memory-mapped (mmap).",
        "--nproc_per_node: here it is --nproc.",
        "--nprc: there is no such option. Did you mean '--nproc'?",
        "Try 'pretrain run --help'.",
    ]


def test_a_recipe_after_the_flags_is_not_taken_as_their_value(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--lr", "1e-4", "--save-interval", "5", "tiny.yml"])
    err = capsys.readouterr().err
    assert "--lr: here it is --set optimizer.lr=1e-4." in err.splitlines()
    assert "--save-interval: here it is --set checkpoint.save_interval=5." in err.splitlines()


def test_several_nodes_need_a_rendezvous(call):
    assert "--rdzv HOST:PORT" in call("--nnodes", "2")[2]
    assert "no effect on one node" in call("--rdzv", "a:1")[2]


def test_a_hostfile_says_how_many_ranks_there_are(call, workplace):
    (workplace / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    code, out, _ = call("--dry-run", "--hostfile", "hosts", "--set", "parallel.tensor_model_parallel_size=2")
    assert code == 0
    assert "# hosts: node1 2, node2 2; started by pdsh\n" in out
    assert "# ranks: 4 = tensor 2 x pipeline 1 x data 2\n" in out
    assert "started by slurm\n" in call("--dry-run", "--hostfile", "hosts", "--launcher", "slurm")[1]


def test_hosts_whose_ranks_do_not_fit_are_an_error_that_counts_them(call, workplace):
    (workplace / "hosts").write_text("node1 slots=2\nnode2 slots=1\n")
    code, _, err = call("--hostfile", "hosts", "--set", "parallel.tensor_model_parallel_size=2")
    assert code == 2
    assert err.splitlines()[0] == f"{workplace}/hosts: 3 slots (node1 2, node2 1), a rank for each."
    assert "3 ranks cannot hold tensor_model_parallel_size 2" in err


@pytest.mark.parametrize("option", ["--nproc=2", "--nnodes=2", "--rdzv=a:1", "--node-rank=0"])
def test_a_hostfile_and_a_number_of_ranks_exclude_each_other(call, option):
    code, _, err = call("--hostfile", "hosts", option)
    assert code == 2
    assert "--hostfile says where ranks run and how many: --nproc, --nnodes, --rdzv and --node-rank have no" in err


def test_a_launcher_needs_a_hostfile_and_a_hostfile_a_launcher(call, workplace, monkeypatch):
    assert "starts the ranks of a hostfile.\nPass --hostfile FILE as well" in call("--launcher", "slurm")[2]
    (workplace / "hosts").write_text("node1 slots=2\n")
    monkeypatch.setenv("PATH", str(workplace))
    code, _, err = call("--hostfile", "hosts")
    assert code == 2
    assert err.startswith("--launcher pdsh: not on the PATH: pdsh, ssh.\n")
    assert not (workplace / "runs").exists()


def test_starting_the_ranks_of_a_hostfile_imports_neither_torch_nor_deepspeed(workplace):
    (workplace / "hosts").write_text("node1 slots=2\n")
    for name in ("pdsh", "ssh"):
        (workplace / name).touch(mode=0o755)
    program = (
        "import sys; from pretrain.cli.main import main; from pretrain.launch import hosts\n"
        "hosts.run_on_hosts = lambda hosted, job: print('started', job.recipe, hosted.hosts)\n"
        "try: main(['tiny.yml', '--hostfile', 'hosts'])\n"
        "except SystemExit as ended: print(ended.code, {'torch', 'deepspeed'} & set(sys.modules))"
    )
    environment = {**os.environ, "PATH": f"{workplace}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("started tiny.yml node1 2\n0 set()\n", "")


@pytest.mark.parametrize(
    "arguments",
    [["run", "--help"], ["absent.yml"], ["tiny.yml", "--set", "model.num_layer=1"], ["tiny.yml", "--backend", "cdua"]],
    ids=["help", "no recipe", "bad recipe", "unknown backend"],
)
def test_help_and_early_errors_do_not_wait_for_torch(arguments):
    program = (
        "import sys; from pretrain.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as ended: sys.exit(9 if 'torch' in sys.modules else ended.code)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == (0 if "--help" in arguments else 2), done.stderr
