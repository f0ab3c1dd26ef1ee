"""A source is recognized by its content, whatever its name; what is not recognized is refused with a reason."""

from __future__ import annotations

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.sources.recognition import read_source, read_sources

LOG = "-" * 24 + " arguments " + "-" * 24 + "\n  lr " + "." * 46 + " 0.1\n" + "-" * 20 + " end of arguments " + "-" * 21
NEOX = '{\n  # sizes\n  "num-layers": 2,\n  "pipe-parallel-size": 1,\n}\n'
RECIPE = "model:\n  num_layers: 2\ntrain:\n  train_iters: 3\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def source_of(folder, text, name="source"):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_source(name, {})


def refusal(folder, text, name="source"):
    with pytest.raises(MigrateError) as error:
        source_of(folder, text, name)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "kind", "program"),
    [
        ("#!/bin/bash\ntorchrun pretrain_gpt.py --lr 1\n", "script", "pretrain_gpt.py"),
        ("N=1\npython x/pretrain_gpt2.py --lr $N\n", "script", "pretrain_gpt2.py"),
        ("!/bin/bash\ndeepspeed pretrain_gpt.py\n", "script", "pretrain_gpt.py"),
        ("# sizes\n--num-layers 2\n--fp16\n", "arguments", ""),
        ("\ufeff--num-layers 2\n", "arguments", ""),
        (f"started\n{LOG}\n", "log", ""),
        ('{"zero_optimization": {"stage": 1}}', "deepspeed", ""),
        ('{"train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": true}}', "deepspeed", ""),
        ('{"train_micro_batch_size_per_gpu": 4, "pipe-parallel-size": 2}', "neox", "train.py"),
        (NEOX, "neox", "train.py"),
        ("num-layers: 2\nhidden-size: 4\npos-emb: rotary\n", "neox", "train.py"),
        ("language_model:\n  activation_func: gelu\nlr: 1\n", "megatron_yaml", ""),
    ],
)
def test_kinds(folder, text, kind, program):
    source = source_of(folder, text)
    assert (source.name, source.kind, source.program) == ("source", kind, program)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (RECIPE, " is already a recipe.\nRun it with: pretrain run source"),
        ("# Training\n```bash\npython pretrain_gpt.py\n```\n", " is a document.\nSave the script"),
        (f"# Log\n```\n{LOG}\n```\n", " is a document"),
        (b"\x80\x02}q\x00.", " is not a text file"),
        (b"--a \xe9\n", "source:1: this is not UTF-8 text"),
        ("# a\n\n", "source has only comments"),
        ("import torch\n# torchrun\n", "source is a Python program"),
        ("Dear all, hello.\n", "source is not recognized"),
        ("name: x\njobs: y\n", "no program that migrate knows has these settings"),
        ('{"a": 1}', "no program that migrate knows has these settings"),
    ],
)
def test_other_files_are_refused(folder, text, what):
    assert what in refusal(folder, text)


def test_broken_settings_are_refused_with_their_line(folder):
    assert "ds.json:2: this is not JSON" in refusal(folder, '{"fp16":\n{},}', "ds.json")
    assert "a.yml:3: this is not a YAML file" in refusal(folder, '"num-layers": 2\n"lr: 3\n', "a.yml")
    assert "fp16 is given twice, in line 1 too" in refusal(folder, '{"fp16": {},\n"fp16": {}}')


def test_a_missing_file_is_not_far_from_one_that_is_there(folder):
    (folder / "train.sh").write_text("")
    with pytest.raises(MigrateError, match=r"trian.sh does not exist. Did you mean 'train.sh'\?"):
        read_source("trian.sh", {})
    with pytest.raises(MigrateError, match=r"^\. is a folder"):
        read_source(".", {})
    with pytest.raises(MigrateError, match="'s3://b/x' is a URL; only local files are read"):
        read_source("s3://b/x", {})


def test_large_files_are_refused_unless_their_arguments_come_first(folder):
    assert "is too large" in refusal(folder, "x" * 5_000_000)
    assert source_of(folder, f"{LOG}\n{'x' * 5_000_000}").kind == "log"


@pytest.mark.parametrize(
    "text",
    ["\n" * 3000 + "a", "{" + "#" * 3000, "-" * 3000 + " arguments ---", " " * 3000 + "x"],
    ids=["lines", "comment", "dashes", "blanks"],
)
def test_a_long_row_of_one_sign_takes_no_time(folder, text):
    assert "Give a shell script that starts a training" in refusal(folder, text)


def test_files_of_gpt_neox_are_one_source(folder):
    (folder / "model.yml").write_text("num-layers: 2\npos-emb: rotary\n")
    (folder / "setup.yml").write_text("data-path: a\nsave: b\n")
    (folder / "more.yml").write_text("seed: 3\n")
    (folder / "args").write_text("--fp16")
    merged, args = read_sources(["model.yml", "args", "setup.yml", "more.yml"], {})
    assert sorted(merged.settings) == ["data_path", "num_layers", "pos_emb", "save", "seed"]
    with pytest.raises(MigrateError, match=r"more.yml: no program that migrate knows has these settings"):
        read_sources(["args", "more.yml"], {})
    assert args.kind == "arguments"
