import io
import subprocess
import sys
from contextlib import closing

import pytest

from pretrain.report.console import Console
from pretrain.report.metrics import EvalRecord, duration


def printed(*calls, total=100, **options):
    stream = io.StringIO()
    with closing(Console(total, stream=stream, **options)) as console:
        for call in calls:
            call(console)
    return stream.getvalue()


def test_off_a_terminal_an_interval_is_one_line(train_record):
    record = train_record(mfu=0.421, memory_peak_bytes=3 * 2**30, skipped_iterations=2)
    assert printed(lambda console: console.train(record)) == (
        "iteration  10/100 | samples 80 | loss 4.2500 | lr 3.000e-04 | grad norm 1.500 | batch 8 | 0.500 s/iteration | "
        "16.00 samples/s | 8192 tokens/s/device | 7 TFLOP/s/device | MFU 42.1 % | skipped 2 | nan 0 | "
        "memory 3.00 GiB | left 0:45\n"
    )


def test_the_loss_scale_is_shown_where_there_is_one(train_record):
    assert "loss scale" not in printed(lambda console: console.train(train_record()))
    assert "| loss scale 65536 |" in printed(lambda console: console.train(train_record(loss_scale=65536.0)))


def test_an_interval_of_skipped_iterations_has_no_loss(train_record):
    line = printed(lambda console: console.train(train_record(lm_loss=None, grad_norm=None)))
    assert "loss nan" in line
    assert "grad norm nan" in line


def test_norms_are_shown_where_they_are_logged(train_record):
    line = printed(lambda console: console.train(train_record(params_norm=12.5, num_zeros_in_grad=3)))
    assert "params norm 12.500 | zeros in grad 3" in line


def test_an_evaluation_is_one_line():
    records = [EvalRecord.of("valid", 50, 2.0), EvalRecord.of("test", 100, 3.0)]
    assert printed(*(lambda console, record=record: console.evaluation(record) for record in records)) == (
        "validation at iteration 50/100 | loss 2.0000 | ppl 7.389\n"
        "test at iteration 100/100 | loss 3.0000 | ppl 20.09\n"
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_every_rank_but_0_prints_nothing(train_record, terminal):
    def everything(console):
        console.train(train_record())
        console.evaluation(EvalRecord.of("valid", 1, 1.0))
        console.note("text")

    assert printed(everything, rank=1, terminal=terminal) == ""


def test_a_terminal_gets_a_bar_with_loss_speed_and_time_left(train_record, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    screen = printed(lambda console: console.train(train_record()), terminal=True)
    for words in ("10/100", "loss 4.2500", "16,384 tokens/s", "0:45 left"):
        assert words in screen


def test_the_slowest_rank_is_named_unless_steps_are_so_short_that_chance_decides(train_record):
    slow = {"slowest_rank": 3, "slowdown": 0.25, "slowdown_cause": "compute"}
    assert "| slowest rank 3 +25 % compute |" in printed(lambda console: console.train(train_record(**slow)))
    short = train_record(**slow, seconds_per_iteration=0.02)
    assert "slowest" not in printed(lambda console: console.train(short))


@pytest.mark.parametrize("name", ["TTY_COMPATIBLE", "OMPI_COMM_WORLD_RANK"])
def test_a_stream_that_only_looks_like_a_terminal_gets_lines(train_record, monkeypatch, name):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv(name, "0")
    stream = Terminal()
    with closing(Console(100, stream=stream)) as console:
        console.train(train_record())
    assert stream.getvalue().startswith("iteration  10/100 | ")


def test_text_is_printed_as_it_is_on_a_terminal_too(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = "[red]no markup[/red] " + "and never wrapped " * 10
    assert text in printed(lambda console: console.note(text), terminal=True)


def test_plain_lines_need_no_rich():
    program = (
        "import sys; from pretrain.report.console import Console; Console(1, terminal=False).note('x');"
        "sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (42.4, "0:42"), (59.6, "1:00"), (3723, "1:02:03"), (273906, "3d 04:05:06")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
