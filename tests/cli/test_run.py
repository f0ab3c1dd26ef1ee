"""`pretrain run`: everything up to the training, which is faked here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.faked_run import call, reference, site, trainings, workplace
from pretrain.cli.main import main
from pretrain.errors import DataError
from pretrain.recipe import load_recipe

__all__ = ["call", "reference", "site", "trainings", "workplace"]


def files(folder):
    """Return what is in a folder, but for bytecode that Python keeps of the fake backend."""
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


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


def test_resume_takes_no_other_word_for_its_value(trainings, call):
    call("--run-dir", "here")
    with pytest.raises(SystemExit) as ended:
        main(["--run-dir", "here", "--resume", "tiny.yml", "--backend", "fake"])
    assert (ended.value.code, trainings.calls[1]["resume"]) == (0, True)
    assert call("--resume=always", "--run-dir", "here")[0] == 2


def test_the_former_name_of_resume_auto_is_answered(call):
    assert "--auto-resume: it is --resume auto now." in call("--auto-resume")[2].splitlines()


def test_there_must_be_a_run_to_resume(call, trainings, tmp_path):
    assert "pass --run-dir" in call("--resume")[2]
    assert "--resume auto needs a folder that is the same each time" in call("--resume=auto", "--nnodes", "2")[2]
    assert "holds no run to resume" in call("--resume", "--run-dir", "here")[2]
    (first := tmp_path / "runs/first").mkdir(parents=True)
    (first / "recipe.yml").touch()
    first.with_name("frost").mkdir()  # no run
    assert "(no recipe.yml). Did you mean 'first'?\n" in call("--resume", "--run-dir", str(first.with_name("frist")))[2]
    assert trainings.calls == []


def test_an_override_without_its_value_is_named(call):
    assert "--set optimizer.lr: an override is section.key=value: write" in call("--set", "optimizer.lr", "6e-3")[2]


def test_a_training_that_fails_at_once_leaves_no_empty_directory(call, trainings, workplace):
    trainings.error = DataError("corpus.idx is missing.\nBuild it.")
    assert call() == (2, "", "corpus.idx is missing.\nBuild it.\n")
    assert list((workplace / "runs").iterdir()) == []


def test_the_corpus_is_built_before_the_training_and_only_where_the_recipe_has_one(call, trainings, monkeypatch):
    from pretrain.tools.corpus import recipe_corpus

    built = []
    monkeypatch.setattr(recipe_corpus, "prepare_corpus", lambda recipe: built.append(len(trainings.calls)))
    call()
    assert built == []
    assert call("--set", "data.corpus={source: python_stdlib}")[0] == 0
    assert built == [1]


def test_a_corpus_that_cannot_be_built_starts_nothing(call, trainings, monkeypatch, workplace):
    from pretrain.tools.corpus import recipe_corpus

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
    assert "parameters without the vocabulary's: " in out
    assert "; the vocabulary is unknown: " in out
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
    assert out.endswith("# data: new and new.json are missing, the run first builds them from python_stdlib\n")


def test_a_dry_run_looks_at_the_run_directory(call):
    code, _, err = call("--dry-run", "--resume", "--run-dir", "here")
    assert (code, err.splitlines()[0]) == (2, "--run-dir here holds no run to resume (no recipe.yml).")


def test_a_device_that_is_not_there_is_an_error(call, site, trainings):
    site.backend("gone", availability="Unavailable('the driver is missing', 'Install it.')")
    code, _, err = call("--backend", "gone")
    assert code == 2
    assert "the driver is missing\nInstall it." in err
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


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["run", "--help"], marks=pytest.mark.full),
        pytest.param(["absent.yml"], marks=pytest.mark.full),
        ["tiny.yml", "--set", "model.num_layer=1"],
        ["tiny.yml", "--backend", "cdua"],
    ],
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
