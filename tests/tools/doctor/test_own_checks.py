"""The checks of one rank: what they look at, that a failing one does not end them, and each fault made on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch
import yaml

from pretrain.checkpoint.checksums import write as write_checksums
from pretrain.checkpoint.folder import LATEST, tracked
from pretrain.checkpoint.identity import structure
from pretrain.cli.main import main
from pretrain.cpu.backend import CpuBackend
from pretrain.errors import BackendError
from pretrain.launch.start_checks import CHECKS, Start
from pretrain.plugins.backend import Memory, Remark
from pretrain.recipe import load_recipe, make_recipe
from pretrain.tools.doctor import examination
from pretrain.tools.doctor.examination import examine_start
from pretrain.tools.doctor.finding import Verdict
from recipe.smallest import SMALLEST
from tools.doctor.conftest import world_of
from tools.doctor.found import only
from tools.doctor.written_tokens import write_tokens

pytestmark = pytest.mark.usefixtures("quick")

KERNELS = ["attention", "norm", "activation", "bias_dropout_add", "cross_entropy", "linear", "optimizer"]

HALF_THE_BIAS = """
@hookimpl
def pretrain_norm(request):
    return Offer(name="hasty", build=lambda built: norm)

def norm(x, weight, bias):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias / 2)
"""

RAISES = """
@hookimpl
def pretrain_norm(request):
    return Offer(name="broken", build=lambda built: norm)

def norm(x, weight, bias):
    raise RuntimeError("no kernel image is available for\\nthis device")
"""


def test_nothing_is_wrong_here_and_every_kernel_of_the_recipe_is_tried(examined):
    said = []
    own = examined(doing=said.append)
    assert [f for f in own.findings if f.verdict is Verdict.WRONG] == []
    tried = [f.check.removeprefix("kernel ") for f in own.findings if f.check.startswith("kernel ")]
    assert tried == KERNELS
    assert list(own.kernels) == [*KERNELS[:1], *KERNELS[1:]]
    assert own.device == torch.device("cpu")
    dropping = "attention", "bias_dropout_add"
    signs = [(f"kernel {name}", *([f"kernel {name} with dropout"] if name in dropping else [])) for name in KERNELS]
    assert said == [
        *("import of the backend", "device", "versions", "environment", "limits", "requirements", "device", "matmul"),
        *("negotiation of kernels", *chain.from_iterable(signs)),
    ]


def test_rotary_softmax_and_the_last_layer_are_tried_where_the_recipe_has_them(examined):
    own = examined(
        "model.position_embedding_type=rope",
        "kernels.attention=softmax",
        "model.apply_query_key_layer_scaling=true",
        "precision.dtype=fp16",
        "precision.initial_loss_scale=1024",
    )
    found = {f.check: f.verdict for f in own.findings if f.check.startswith("kernel ")}
    assert {"kernel softmax", "kernel rotary", "kernel attention of layer 2"} <= set(found)
    assert set(found.values()) <= {Verdict.OK, Verdict.LOOK}


def test_a_kernel_with_a_wrong_result_is_named_with_its_error(site, examined):
    site.plugin("hasty", HALF_THE_BIAS)
    findings = examined().findings
    wrong = only([f for f in findings if f.verdict is Verdict.WRONG], "kernel norm")
    assert wrong.text.startswith("output off by 0.")
    assert "gradient of bias off by 0.5, 1e-05 allowed" in wrong.text
    assert "kernels.norm" in wrong.remedy
    assert "`pretrain conformance --backend cpu`" in wrong.remedy
    assert "norm hasty" in only(findings, "kernels").text


def test_a_kernel_that_raises_is_named_and_the_others_are_tried(site, examined):
    site.plugin("broken", RAISES)
    findings = examined().findings
    wrong = only(findings, "kernel norm")
    assert (wrong.verdict, wrong.text) == (
        Verdict.WRONG,
        "RuntimeError: no kernel image is available for this device",
    )
    assert only(findings, "kernel optimizer").verdict is Verdict.OK


def test_a_missing_device_is_a_finding_with_the_backends_remedy(site, examined):
    site.backend("fake", availability="Unavailable('the driver shows none', 'Start the container with --gpus all.')")
    own = examined(backend="fake")
    wrong = only(own.findings, "device")
    assert wrong.text == "backend 'fake' (pretrain-fake 1.0) has no usable device: the driver shows none"
    assert wrong.remedy == "Start the container with --gpus all."
    assert own.device is None
    assert [f for f in own.findings if f.check.startswith(("kernel", "matmul"))] == []
    assert {"versions", "environment", "open files"} <= {f.check for f in own.findings}


def test_a_backend_that_breaks_is_a_finding(examined, monkeypatch):
    def device(self, local_rank):
        msg = "rank 7 of this node has no device: 4 are visible.\nStart at most 4 ranks on a node."
        raise BackendError(msg)

    monkeypatch.setattr(CpuBackend, "device", device)
    wrong = only(examined().findings, "device")
    assert (wrong.verdict, wrong.text) == (Verdict.WRONG, "rank 7 of this node has no device: 4 are visible.")
    assert wrong.remedy == "Start at most 4 ranks on a node."


def test_a_dtype_that_the_device_does_not_have_is_wrong(examined, monkeypatch):
    monkeypatch.setattr(CpuBackend, "supports", lambda self, dtype: dtype is not torch.bfloat16)
    wrong = [f for f in examined("precision.dtype=bf16").findings if f.verdict is Verdict.WRONG]
    assert wrong[0].text.endswith("does not support bfloat16 on this device.")
    assert wrong[0].remedy == "Set precision.dtype to one of: fp32, fp16"


def test_the_backend_judges_its_own_software(examined, monkeypatch):
    remark = Remark(subject="driver", verdict="wrong", text="driver 450, CUDA 13 needs 580", remedy="Update it.")
    monkeypatch.setattr(CpuBackend, "health", lambda self: [remark])
    monkeypatch.setattr(CpuBackend, "device", lambda self, local_rank: 1 / 0)  # without one it is asked too
    wrong = only(examined().findings, "driver")
    assert (wrong.verdict, wrong.text, wrong.remedy) == (Verdict.WRONG, remark.text, "Update it.")


def test_an_answer_of_a_wrong_kind_names_the_member_and_what_is_allowed(examined, monkeypatch):
    monkeypatch.setattr(CpuBackend, "health", lambda self: ["well"])
    wrong = only([f for f in examined().findings if f.verdict is Verdict.WRONG], "versions")
    assert wrong.text == "backend 'cpu' (pretrain 0.1.0): CpuBackend.health() returned list: ['well']"
    assert wrong.remedy.startswith("Allowed: a sequence of Remark.")


def test_memory_of_a_wrong_kind_names_the_backend(examined, monkeypatch):
    monkeypatch.setattr(CpuBackend, "memory", lambda self, reset_peak=False: Memory("much", None, None))
    assert "Allowed: a Memory of bytes or None" in only(examined().findings, "device").remedy


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
    ("kill switch", kill_switch, "train.kill_switch_path: stop exists, so a training would stop at once."),
    ("checkpoint folder", folder_of_another_run, "checkpoint.save: theirs has the checkpoints of another run: 5."),
    ("checkpoint folder", lambda _: ["--set", "checkpoint.save=/proc/nowhere"], "/proc/nowhere cannot be written: "),
    ("data", lambda _: ["--set", "data.path=absent"], "token file absent.idx is missing."),
    (
        "data",
        other_tokenizer,
        "corpus was made with another tokenizer (8192 tokens) than the given one (257 tokens).",
    ),
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
    # The package or the login is missing.
    ("loggers", lambda _: ["--set", "logging={loggers: [comet]}"], "logging.loggers: comet "),
    (
        "tasks",
        lambda _: ["--set", "evaluation.tasks=[words]"],
        "tasks are evaluated by lm-eval, which is not installed",
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
def test_a_run_is_refused_and_the_doctor_says_the_same(workplace, capsys, monkeypatch, name, prepare, message):
    monkeypatch.setitem(sys.modules, "lm_eval", None)  # as where the extra is not installed
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
    monkeypatch.setattr(examination, "_MOST", 10)
    (_, large) = examine_start(start, worlds[0], lambda _: None)
    assert large.verdict is Verdict.LOOK
