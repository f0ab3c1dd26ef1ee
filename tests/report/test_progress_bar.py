"""One bar for all long work: on a terminal it is drawn, in a log it is a line now and then."""

import io
import random
import sys
from unittest.mock import patch

import pytest

from pretrain.report.console import ByteCount, ProgressBar


def shown(*counts, terminal, every=0.0, total=2_000_000, monkeypatch):
    monkeypatch.setattr("pretrain.report.console.LINE_EVERY", every)
    monkeypatch.setenv("COLUMNS", "160")
    stream = io.StringIO()
    with ProgressBar(stream=stream, terminal=terminal) as bar:
        count = ByteCount(bar, total, "verified [/red]")
        for each in counts:
            count(each)
        bar.print("[red]done[/red]")
    return stream.getvalue()


def test_a_log_has_bytes_speed_and_time_left(monkeypatch):
    first, second, last = shown(1_500_000, 500_000, terminal=False, monkeypatch=monkeypatch).splitlines()
    assert first.startswith("verified [/red] 1.5 MB of 2 MB, ")
    assert second.startswith("verified [/red] 2 MB of 2 MB, ")
    assert second.endswith("B/s, 0:00 left")
    assert last == "[red]done[/red]"


def test_a_log_has_no_more_lines_than_one_each_interval(monkeypatch):
    assert shown(1, 1, 1, terminal=False, every=1000.0, monkeypatch=monkeypatch) == "[red]done[/red]\n"


def test_a_terminal_has_the_same_text_beside_the_bar(monkeypatch):
    screen = shown(1_500_000, 500_000, terminal=True, monkeypatch=monkeypatch)
    assert "verified [/red] 2 MB of 2 MB, " in screen
    assert "[red]done[/red]\n" in screen


def test_earlier_work_counts_for_the_sum_and_not_for_the_speed(monkeypatch):
    monkeypatch.setattr("pretrain.report.console.LINE_EVERY", 0.0)
    clock = iter([0.0, 0.0, 10.0, 10.0, 10.0])
    monkeypatch.setattr("pretrain.report.console.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    count = ByteCount(ProgressBar(stream=stream, terminal=False), 3000, done=1000)
    count.reach(2000, "7 documents")
    assert stream.getvalue() == "2 kB of 3 kB, 100 B/s, 7 documents, 0:10 left\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_it_may_be_closed_twice(terminal):
    bar = ProgressBar(stream=io.StringIO(), terminal=terminal)
    bar.close()
    bar.close()


def test_a_bar_leaves_pythons_random_generator_as_it_is():
    before = random.getstate()
    with patch.dict(sys.modules):
        for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
            del sys.modules[name]  # one of them draws a number when it is imported
        with ProgressBar(stream=io.StringIO(), terminal=True) as bar:
            bar.show(1, 2, "working")
    assert random.getstate() == before
