"""The doctor looks at token files and tokenizer: readable, equal on all ranks, fast enough."""

import json
import os
from pathlib import Path

import pytest

from doctor.written_tokens import write_tokens
from pretrain.doctor.files.data import judge_data, look_at_data
from pretrain.doctor.files.read_speed import read_speed
from pretrain.doctor.finding import Verdict
from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST


def look(prefix, *overrides, with_speed=False):
    recipe = make_recipe(SMALLEST | {"data": {"path": str(prefix)}}, overrides)
    seen = look_at_data(recipe, lambda _: None, with_speed=with_speed)
    return json.loads(json.dumps(seen))  # as another rank reads it


@pytest.fixture
def tokens(tmp_path):
    return write_tokens(tmp_path / "corpus", range(1000))


def test_equal_files_are_ok(tokens):
    (found,) = judge_data({0: look(tokens), 1: look(tokens)})
    assert (found.verdict, found.text) == (Verdict.OK, f"token files {tokens}: 1,000 tokens, equal on 2 ranks")


def test_a_copy_in_another_folder_of_the_same_name_is_equal(tokens, tmp_path, monkeypatch):
    copy = write_tokens(tmp_path / "copy" / "corpus", range(1000))
    seen = {}
    for rank, folder in enumerate((tokens.parent, copy.parent)):
        monkeypatch.chdir(folder)
        seen[rank] = look(Path("corpus"))
    assert [found.verdict for found in judge_data(seen)] == [Verdict.OK]


def test_other_content_on_one_rank_is_named(tokens):
    seen = {rank: look(tokens) for rank in (0, 2)}
    write_tokens(tokens, [*range(999), 5])
    seen[1] = look(tokens)
    (found,) = judge_data(seen)
    assert (found.verdict, found.ranks) == (Verdict.WRONG, (1,))
    assert f"other content on rank 1 (host {os.uname().nodename})" in found.text


def test_a_file_that_one_rank_lacks_is_named(tokens):
    seen = {0: look(tokens)}
    tokens.with_name("corpus.bin").unlink()
    seen[1] = look(tokens)
    wrong, fine = judge_data(seen)
    assert wrong.text == f"token file {tokens}.bin is missing on rank 1 (host {os.uname().nodename})"
    assert wrong.remedy.startswith("Build it")
    assert fine.text.endswith("1,000 tokens")


def test_files_that_the_run_builds_may_be_absent_but_on_all_ranks(tokens, tmp_path):
    corpus = "data.corpus={source: python_stdlib}"
    absent, there = look(tmp_path / "later", corpus), look(tokens)
    assert [found.verdict for found in judge_data({0: absent, 1: absent})] == [Verdict.OK]
    wrong = [found for found in judge_data({0: there, 1: absent}) if found.verdict is Verdict.WRONG]
    assert [found.ranks for found in wrong] == [(1,)]


def test_a_tokenizer_that_differs_is_named(tokens, tmp_path):
    vocab, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    overrides = ("tokenizer.type=gpt2", f"tokenizer.vocab_file={vocab}", f"tokenizer.merge_file={merges}")
    seen = {}
    for rank, content in enumerate(["{}", "{}", '{"a": 0}']):
        vocab.write_text(content)
        merges.write_text("")
        seen[rank] = look(tokens, *overrides)
    _, found = judge_data(seen)
    assert (found.verdict, found.ranks) == (Verdict.WRONG, (2,))


def test_the_speed_of_a_large_file_is_measured_and_a_slow_disk_is_looked_at(tokens):
    assert look(tokens, with_speed=True)["speed"] is None  # too small to tell
    large = tokens.with_name("large")
    large.write_bytes(bytes(1 << 24))
    speed = read_speed(large, sample_bytes=64, most_seconds=0.1)
    assert speed["rate"] > 1e6
    assert 0 < speed["sample"] < 0.1
    seen = {rank: look(tokens) | {"speed": {"rate": rate, "sample": 1e-3}} for rank, rate in enumerate((2e8, 2e7))}
    found = judge_data(seen)[-1]
    assert found.verdict is Verdict.LOOK
    assert "20 MB/s (slowest of 2 nodes" in found.text
