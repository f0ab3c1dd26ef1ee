"""What a run refuses before its first iteration the doctor says too, in the same words: for each check of the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from pretrain.checkpoint.checksums import write as write_checksums
from pretrain.checkpoint.folder import LATEST, tracked
from pretrain.checkpoint.structure import structure
from pretrain.cli.main import main
from pretrain.launch.start_checks import CHECKS, Start
from pretrain.recipe import load_recipe, make_recipe
from pretrain.tools.doctor import run_checks
from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.run_checks import examine_start
from recipe.smallest import SMALLEST
from tools.doctor.conftest import world_of
from tools.doctor.written_tokens import write_tokens

BYTES = 257
"""Entries of the tokenizer of bytes."""


HOLDERS = []
"""Processes that hold the run directory of a test."""


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A working directory with the smallest recipe and its token file."""
    monkeypatch.chdir(tmp_path)
    write_tokens(tmp_path / "corpus", [number % BYTES for number in range(4000)])
    recipe = {**SMALLEST, "evaluation": {"interval": 0}}
    (tmp_path / "tiny.yml").write_text(yaml.safe_dump(recipe))
    before = dict(os.environ)
    yield tmp_path
    while HOLDERS:
        HOLDERS.pop().communicate()  # the end of its input ends it
    os.environ.clear()  # a run sets the variables of a rank
    os.environ.update(before)


def checkpoint(folder, iteration=5, **changes):
    """Write a checkpoint of the smallest model, as far as it is looked at before it is read."""
    directory = folder / f"iter_{iteration:07d}"
    directory.mkdir(parents=True)
    model = structure(make_recipe(SMALLEST).model) | {"vocab_size": BYTES} | changes
    torch.save({"format": 3, "model": model, "dtype": "fp32", "counters": {}}, directory / "common.pt")
    for name in ("metadata.json", ".metadata"):
        (directory / name).write_text("{}")
    write_checksums(directory, {})
    (folder / LATEST).write_text(tracked(str(iteration)))
    return directory


def run_of(folder):
    """Make a directory in which a run has begun."""
    (folder / "run").mkdir()
    (folder / "run" / "recipe.yml").touch()
    return ["--run-dir", "run"]


def held_by_another(folder):
    (folder / "run").mkdir()
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom pretrain.launch.run_lock import held\n"
        "with held(Path('run')):\n    print('held', flush=True)\n    sys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    HOLDERS.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder))
    assert HOLDERS[-1].stdout.readline() == b"held\n"
    return ["--run-dir", "run"]


def damaged_metrics(folder):
    (folder / "run").mkdir()
    (folder / "run" / "recipe.yml").touch()
    (folder / "run" / "metrics.jsonl").write_text('no JSON\n{"iteration": 2}\n')
    return ["--run-dir", "run", "--resume"]


def metrics_folder(folder):
    (folder / "run" / "metrics.jsonl").mkdir(parents=True)
    (folder / "run" / "recipe.yml").touch()
    return ["--run-dir", "run", "--resume"]


def kill_switch(folder):
    (folder / "stop").touch()
    return ["--set", "train.kill_switch_path=stop"]


def folder_of_another_run(folder):
    checkpoint(folder / "theirs")
    return ["--set", "checkpoint.save=theirs"]


def other_tokenizer(folder):
    (folder / "corpus.tokenizer.json").write_text(json.dumps({"fingerprint": "other", "vocab_size": 8192}))
    return []


def ids_beyond_the_vocabulary(folder):
    write_tokens(folder / "corpus", [65442] * 4000)
    return []


def too_few_tokens(folder):
    write_tokens(folder / "corpus", range(20))
    return []


def resumed_with_another_model(folder):
    checkpoint(folder / "run" / "checkpoints", hidden_size=128)
    (folder / "run" / "recipe.yml").touch()
    return ["--run-dir", "run", "--resume"]


def loads_another_model(folder):
    checkpoint(folder / "theirs", num_layers=3)
    return ["--set", "checkpoint.load=theirs"]


CASES = [
    ("run directory", run_of, "--run-dir run already holds a run (recipe.yml)."),
    ("run directory", held_by_another, "run is in use by process "),
    ("run directory", lambda _: ["--run-dir", "/proc/nowhere/run"], "/proc/nowhere/run cannot be written: "),
    ("metrics", damaged_metrics, "run/metrics.jsonl:1: not a JSON object with an iteration."),
    ("metrics", metrics_folder, "run/metrics.jsonl cannot be written: Is a directory."),
    ("kill switch", kill_switch, "train.kill_switch_path: stop exists, which ends a training."),
    ("checkpoint folder", folder_of_another_run, "checkpoint.save: theirs has the checkpoints of another run: 5."),
    ("checkpoint folder", lambda _: ["--set", "checkpoint.save=/proc/nowhere"], "/proc/nowhere cannot be written: "),
    ("data", lambda _: ["--set", "data.path=absent"], "token file absent.idx is missing."),
    ("data", other_tokenizer, "corpus was made with another tokenizer (8192 tokens) than the recipe's (257 tokens)."),
    ("data", ids_beyond_the_vocabulary, "corpus.bin holds token id 65442, but the tokenizer has only 257 tokens."),
    ("data", too_few_tokens, "corpus: split 'train' has 1 of 1 documents with 20 tokens, fewer than one sample of 32"),
    (
        "data",
        lambda _: ["--set", "data={path: /proc/nowhere/built, corpus: {source: python_stdlib}}"],
        "/proc/nowhere/built.lock cannot be written: ",
    ),
    (
        "sample indices",
        lambda _: ["--set", "data.cache_path=/proc/nowhere"],
        "the sample indices cannot be written to /proc/nowhere: ",
    ),
    ("starting checkpoint", lambda _: ["--set", "checkpoint.load=nowhere"], "checkpoint.load: nowhere holds no "),
    ("starting checkpoint", loads_another_model, "is of another run: model.num_layers 3 (recipe: 2)."),
    ("starting checkpoint", resumed_with_another_model, "is of another run: model.hidden_size 128 (recipe: 64)."),
]


def test_every_check_of_a_run_has_a_case_here():
    assert {name for name, *_ in CASES} == {check.name for check in CHECKS}


def start_of(words):
    """The same run, as the doctor is given it."""
    given = dict(zip(words[::2], words[1::2], strict=False))
    overrides = [given["--set"]] if "--set" in given else []
    run_dir = Path(given["--run-dir"]) if "--run-dir" in given else None
    resume = "run" if "--resume" in words else "no"
    return Start(recipe=load_recipe("tiny.yml", overrides), run_dir=run_dir, resume=resume)


@pytest.mark.parametrize(("name", "prepare", "message"), CASES)
def test_a_run_is_refused_and_the_doctor_says_the_same(workplace, capsys, name, prepare, message):
    words = prepare(workplace)
    with pytest.raises(SystemExit) as end:
        main(["run", "tiny.yml", *words])
    assert end.value.code == 2
    told, _, remedy = capsys.readouterr().err.strip().partition("\n")
    assert message in told
    found = [each for each in examine_start(start_of(words), world_of(), lambda _: None) if each.check == name]
    assert [(each.verdict, each.text, each.remedy) for each in found] == [(Verdict.WRONG, told, remedy)]


def test_nothing_is_found_where_a_run_can_start_and_nothing_is_written(workplace):
    before = sorted(workplace.rglob("*"))
    (found,) = examine_start(start_of([]), world_of(), lambda _: None)
    assert found.verdict is Verdict.OK
    assert "starting checkpoint" in found.text
    assert sorted(workplace.rglob("*")) == before


def test_one_rank_makes_the_checks_of_a_run(workplace):
    assert examine_start(start_of(["--set", "data.path=absent"]), world_of(rank=1, ranks=2), lambda _: None) == []


def test_the_ranks_read_the_files_of_the_checkpoint_together(workplace, monkeypatch):
    directory = checkpoint(workplace / "theirs")
    (directory / "metadata.json").write_text("[]")
    start = start_of(["--set", "checkpoint.load=theirs"])
    worlds = [world_of(rank=rank, ranks=2) for rank in range(2)]
    found = [each for world in worlds for each in examine_start(start, world, lambda _: None)]
    fine, wrong = sorted((each for each in found if each.check == "checkpoint"), key=lambda each: each.verdict)
    assert (fine.verdict, wrong.verdict) == (Verdict.OK, Verdict.WRONG)
    assert wrong.text.endswith("metadata.json is damaged: its checksum has changed since it was written.")
    monkeypatch.setattr(run_checks, "_MOST", 10)
    (_, large) = examine_start(start, worlds[0], lambda _: None)
    assert large.verdict is Verdict.LOOK
