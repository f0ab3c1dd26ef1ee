"""The doctor looks at the token files' speed."""

from __future__ import annotations

from pretrain.recipe import make_recipe
from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.ranks.steps import judge_reading, measured_speed, read_speed
from recipe.smallest import SMALLEST
from tools.doctor.written_tokens import write_tokens


def test_the_speed_of_a_large_file_is_measured_and_a_slow_disk_is_looked_at(tmp_path):
    tokens = write_tokens(tmp_path / "corpus", range(1000))
    recipe = make_recipe(SMALLEST, [f"data.path={tokens}"])
    assert measured_speed(recipe, lambda _: None) is None  # too small to tell
    large = tmp_path / "corpus.bin"
    large.write_bytes(bytes(1 << 24))
    assert measured_speed(recipe, lambda _: None, most_seconds=0.1)["rate"] > 1e6
    speed = read_speed(large, sample_bytes=64, most_seconds=0.1)
    assert 0 < speed["sample"] < 0.1
    (found,) = judge_reading(
        {rank: {"host": "b", "rate": rate, "sample": 1e-3} for rank, rate in enumerate((2e8, 2e7))}
    )
    assert found.verdict is Verdict.LOOK
    assert "20 MB/s (slowest of 2 nodes: b)" in found.text


def test_files_that_are_not_there_yet_have_no_speed(tmp_path):
    assert measured_speed(make_recipe(SMALLEST, [f"data.path={tmp_path / 'later'}"]), lambda _: None) is None
