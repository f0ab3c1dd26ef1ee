"""Scripts, settings and a log like those that people train with today."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretrain.tools.migrate.sources.files import deepspeed_file
from pretrain.tools.migrate.sources.recognition import read_source

SEEDS = Path(__file__).parent.parent / "seeds"
NAMES = {"1": "checkpoints", "2": "logs", "3": "vocab.json", "4": "merges.txt", "CORPORA": "data", "CACHES": "data"}


def seed(name):
    return read_source(str(SEEDS / name), NAMES)


def options(words):
    """Return the values of each option, by its name."""
    found = {}
    for word in words:
        if word.text.startswith("--"):
            values = found[word.text] = []
        else:
            values.append(word.text)
    return found


@pytest.mark.parametrize(
    ("name", "nproc", "nnodes", "count"),
    [
        ("seed1.sh", 8, 8, 37),
        ("seed2.sh", 1, 1, 31),
        ("seed2_zero3.sh", 4, 1, 32),
        ("seed4.sh", 2, 1, 48),
        ("seed5.sh", 1, 1, 27),
    ],
)
def test_each_script_starts_a_training(name, nproc, nnodes, count):
    source = seed(name)
    assert (source.kind, source.program) == ("script", "pretrain_gpt.py")
    assert (source.launch.nproc, source.launch.nnodes) == (nproc, nnodes)
    assert len(options(source.words)) == count
    assert not [word for word in source.words if word.asked]
    assert source.notices == ()


def test_values_of_gpt3():
    given = options(seed("seed1.sh").words)
    assert given["--data-path"] == [
        *("0.35", "data/wikipedia_20220301_en_text_document"),
        *("0.65", "data/openwebtext_Skylion007_text_document"),
    ]
    assert (given["--num-layers"], given["--tensor-model-parallel-size"]) == (["96"], ["8"])
    assert (given["--load"], given["--merge-file"]) == (["checkpoints"], ["merges.txt"])


def test_gpt3_asks_for_what_it_leaves_to_its_user():
    asked = {item.name for word in read_source(str(SEEDS / "seed1.sh"), {}).words for item in word.asked}
    assert asked == set(NAMES)


def test_a_word_has_the_line_of_the_text_that_it_comes_from():
    lines = {word.text: word.place.line for word in seed("seed4.sh").words}
    text = (SEEDS / "seed4.sh").read_text().split("\n")
    for name in ("--embed-layernorm", "--adam-eps", "--kill-switch-path", "--zero-stage", "--distributed-backend"):
        assert name in text[lines[name] - 1]


def test_the_deepspeed_file_of_a_script():
    source = seed("seed4.sh")
    path = options(source.words)["--deepspeed_config"][0]
    found = deepspeed_file(source, path)
    assert found.values["fp16.initial_scale_power"] == 12
    assert found.values["train_batch_size"] == 16
    assert deepspeed_file(seed("seed2_zero3.sh"), "deepspeed_config.json").values["zero_optimization.stage"] == 3


def test_settings_of_gpt_neox():
    source = seed("seed3.yml")
    assert source.kind == "neox"
    assert source.settings["optimizer"].value["params"]["betas"] == [0.9, 0.95]
    assert source.settings["gradient_accumulation_steps"].value == 32


def test_the_log():
    source = seed("seed5.log")
    values = {name: setting.value for name, setting in source.settings.items()}
    assert (source.kind, len(values)) == ("log", 225)
    assert (values["split"], values["params_dtype"], values["world_size"]) == ("700,200,100", "fp16", 1)
    script = options(seed("seed5.sh").words)
    for name in ("--num-layers", "--global-batch-size", "--lr", "--train-iters", "--eval-interval", "--save"):
        assert str(values[name[2:].replace("-", "_")]) == script[name][0]


@pytest.mark.parametrize(
    ("name", "workers", "vocab"),
    [
        ("seed1_preprocess.sh", "8", "--vocab-file"),
        ("seed2_preprocess.sh", "8", "--vocab"),
        ("seed3_preprocess.sh", "150", "--vocab"),
        ("seed4_preprocess.sh", "4", "--vocab"),
    ],
)
def test_builds_of_token_files(name, workers, vocab):
    source = seed(name)
    (words,) = source.preprocessing
    given = options(words)
    assert (source.program, given["--workers"]) == ("", [workers])
    assert vocab in given


def test_texts_of_a_loop_are_joined():
    (words,) = seed("seed3_preprocess.sh").preprocessing
    assert options(words)["--input"] == ["pile/00.jsonl,pile/01.jsonl,pile/02.jsonl,pile/03.jsonl"]
