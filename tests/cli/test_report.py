from contextlib import closing

import pytest

from pretrain.cli.main import main
from pretrain.report.metrics import EvalRecord, MetricsWriter


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        with closing(MetricsWriter(tmp_path / name / "metrics.jsonl")) as metrics:
            metrics.write(EvalRecord.of("valid", 20, 2.0))
    return tmp_path


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["report", *arguments])
    return ended.value.code, *capsys.readouterr()


def test_the_report_of_one_run_lies_in_its_directory(runs, capsys):
    assert call(capsys, "a") == (0, "report: a/report.html\n", "")
    assert (runs / "a/report.html").read_text().startswith("<!doctype html>")


def test_the_report_of_several_runs_lies_here_or_where_wanted(runs, capsys):
    assert call(capsys, "a", "b") == (0, "report: report.html\n", "")
    assert call(capsys, "a", "b", "--output", "deep/both.html")[0] == 0
    assert (runs / "report.html").read_text() == (runs / "deep/both.html").read_text()


def test_a_directory_without_a_run_is_an_error(runs, capsys):
    code, out, err = call(capsys, "c")
    assert (code, out) == (2, "")
    assert err.startswith("c is not a directory.\n")


def test_a_run_must_be_given(capsys):
    code, _, err = call(capsys)
    assert code == 2
    assert "Missing argument 'RUN [RUN ...]'" in err
