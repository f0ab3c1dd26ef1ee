"""The benchmark of `pretrain data build` runs, and what it tokenizes is the same in every run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from structure.sources import ROOT


@pytest.fixture
def english(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.data.english import write_english

    return write_english


@pytest.mark.full
@pytest.mark.slow
def test_the_text_is_jsonl_of_the_size_and_the_same_in_every_run(tmp_path, english, shared_data):
    for name in ("a", "b"):
        english(shared_data / "peps.jsonl", tmp_path / name, 300_000)
    content = (tmp_path / "a").read_bytes()
    assert content == (tmp_path / "b").read_bytes()
    assert all(json.loads(line)["text"] for line in content.splitlines())
    assert 300_000 <= len(content) < 500_000


@pytest.mark.full
@pytest.mark.slow
def test_it_runs_and_all_outputs_are_equal(shared_data):
    benchmark = ["-m", "benchmarks.data.data_build", "--megabytes", "1", "--rounds", "1", "--without-pool"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *benchmark]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert {"date", "versions", "corpus", "runs", "ratios_of_medians"} <= set(result)
