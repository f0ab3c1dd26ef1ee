"""The summary of a profile: its file, the table on the screen, and the picture in the report."""

import os

import pytest

from pretrain.report.run_page import write_report
from pretrain.report.step_summary import (
    FOLDER,
    StepSummary,
    latest_summaries,
    read_summary,
    summary_file,
    summary_text,
)
from pretrain.report.step_trace import step_times
from report.made_up_trace import on_a_device, on_the_host


def summary(rank=0, first=10, trace=None, **given):
    times = step_times(trace or on_the_host(), "gloo")
    return StepSummary.of(times, rank, first, first + 1, **{"device_unseen": False, **given})


def profile_of(run_dir, rank, first, when):
    """Write a summary at some seconds since the epoch."""
    file = summary_file(run_dir / FOLDER, rank, first)
    file.write_text(summary(rank, first).to_json())
    os.utime(file, (when, when))


@pytest.fixture
def run_dir(tmp_path, train_record):
    """A run with the profiles of two ranks, an earlier one, and a file that is damaged."""
    from contextlib import closing

    from pretrain.report.metrics import MetricsWriter

    with closing(MetricsWriter(tmp_path / "metrics.jsonl")) as metrics:
        metrics.write(train_record(30))
    (tmp_path / FOLDER).mkdir()
    for when, rank, first in ((2, 1, 20), (2, 0, 20), (1, 0, 10)):
        profile_of(tmp_path, rank, first, when)
    summary_file(tmp_path / FOLDER, 2, 20).write_text("{")
    return tmp_path


def test_a_summary_comes_back_from_its_file(tmp_path):
    (tmp_path / "one.json").write_text(summary().to_json())
    assert read_summary(tmp_path / "one.json") == summary()


def test_a_run_shows_its_latest_profile_by_rank(run_dir):
    assert [(each.rank, each.first_iteration) for each in latest_summaries(run_dir)] == [(0, 20), (1, 20)]
    assert latest_summaries(run_dir / "elsewhere") == []


def test_the_latest_profile_is_the_last_one_written_and_of_one_start(run_dir):
    def shown():
        return [(each.rank, each.first_iteration) for each in latest_summaries(run_dir)]

    profile_of(run_dir, 0, 10, 3)  # once more, after a rollback
    assert shown() == [(0, 10)]
    (run_dir / "environment.json").touch()
    os.utime(run_dir / "environment.json", (4, 4))
    assert shown() == [(0, 10)]  # a start without a profile so far
    profile_of(run_dir, 0, 20, 5)  # rank 1 is there no more
    assert shown() == [(0, 20)]


def test_the_screen_shows_phases_and_parts_whose_shares_are_the_whole():
    lines = summary_text(summary(), parts=True).splitlines()
    assert lines[0] == (
        "profile of rank 0, iterations 10 to 11: 1.000 s a step, 3 operator calls a step; "
        "collectives run for 0.115 s a step, 0.105 s of it exposed"
    )
    middle = lines.index("  longest parts:")
    for table in (lines[1:middle], lines[middle + 1 :]):
        assert sum(float(line.split()[-1].rstrip("%")) for line in table) == pytest.approx(100, abs=0.5)
    assert lines[middle + 1].split()[:2] == ["rest", "forward-backward"]
    assert summary_text(summary(), parts=False).splitlines() == lines[:middle]


def test_many_parts_are_cut_off_and_counted():
    trace = on_the_host()
    names = [{**trace["traceEvents"][3], "name": f"part {n}", "ts": 900 + 100 * n, "dur": 90} for n in range(20)]
    text = summary_text(summary(trace={"traceEvents": trace["traceEvents"] + names}), parts=True)
    assert len(text.partition("longest parts:\n")[2].splitlines()) == 13
    assert "18 others" in text


def test_a_device_that_torch_does_not_see_is_told_of():
    assert "seen nothing of the device" in summary_text(summary(device_unseen=True), parts=False)
    assert "2 kernels launched a step" in summary(trace=on_a_device()).counts


def test_the_report_has_a_bar_for_each_rank(run_dir):
    write_report([run_dir], run_dir / "report.html")
    page = (run_dir / "report.html").read_text()
    picture = page.partition("Where a step goes")[2].partition("</svg>")[0]
    for rank in (0, 1):
        assert f"rank {rank}, iterations 20 to 21: 1.000 s a step" in picture
    widths = [float(part.partition('"')[0]) for part in picture.split('width="')[1:]]
    assert sum(widths) == pytest.approx(2 * 2 * 1120, abs=2)  # two ranks, phases and parts
    assert "mlp.linear_fc1: fast (acme) 19.0%" in picture
    assert ">communication, exposed</li>" in page
