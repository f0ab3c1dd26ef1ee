"""`data.index: native`: a stopped run continues unchanged, and its blend may change."""

from __future__ import annotations

import shutil

import pytest

from e2e.conftest import metrics, pretrain, tiny

SHORT = ("train.train_iters=8", "checkpoint.save_interval=4", "evaluation={interval: 0}", "schedule.lr_warmup_iters=2")


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_python")]


def losses(run_dir):
    return [record["lm_loss"] for record in metrics(run_dir) if record["kind"] == "train"]


@pytest.mark.full
def test_a_run_continues_where_it_stopped_also_with_another_blend(text_tokens, tmp_path):
    other = tmp_path / "other"
    for suffix in (".bin", ".idx"):
        shutil.copy(f"{text_tokens}{suffix}", f"{other}{suffix}")
    with other.with_suffix(".bin").open("r+b") as file:
        file.write(b"\x61\x00" * 50)  # another content

    def blend(here, there, workers=0):
        parts = f"[{{weight: {here}, path: {text_tokens}}}, {{weight: {there}, path: {other}}}]"
        return f"data={{blend: {parts}, index: native, split: '95,5,0', num_workers: {workers}}}"

    whole, halves = tmp_path / "whole", tmp_path / "halves"
    pretrain(*tiny(text_tokens, whole, *SHORT, blend(0.7, 0.3)))
    pretrain(*tiny(text_tokens, halves, *SHORT, blend(0.7, 0.3), "train.exit_interval=4"))
    shutil.copytree(halves, tmp_path / "changed")

    printed = pretrain(*tiny(text_tokens, halves, *SHORT, blend(0.7, 0.3, workers=1)), "--resume")
    assert losses(halves) == losses(whole)
    assert "the blend changes" not in printed

    printed = pretrain(*tiny(text_tokens, tmp_path / "changed", *SHORT, blend(0.1, 0.9)), "--resume")
    assert f"the blend changes: {text_tokens}: weight 0.1, 11 samples read" in printed
    assert f"the blend changes: {other}: weight 0.9, 5 samples read" in printed
    assert "second time" not in printed
    assert losses(tmp_path / "changed")[:4] == losses(whole)[:4]
    assert losses(tmp_path / "changed")[4:] != losses(whole)[4:]
