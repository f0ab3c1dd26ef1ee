import json
import re
from contextlib import closing

import pytest

from pretrain.errors import RunError
from pretrain.report.metrics import EvalRecord, EventRecord, MetricsWriter, TaskRecord
from pretrain.report.run_page import write_report

KERNELS = {
    "rows": [
        {
            "operation": "attention",
            "kernel": "fast",
            "kind": "flash",
            "provider": "pretrain-fake 0.1",
            "rejected": [{"provider": "pretrain 0.1", "kernel": "slow", "why": "declined: head size 512 > 256"}],
        }
    ]
}


@pytest.fixture
def run(tmp_path, train_record):
    """Makes a run directory."""

    def make(name, lr=1e-3, loss=4.0):
        run_dir = tmp_path / name
        with closing(MetricsWriter(run_dir / "metrics.jsonl")) as metrics:
            for iteration in (10, 20, 30):
                metrics.write(train_record(iteration, lm_loss=loss - iteration / 100, learning_rate=lr))
            metrics.write(EvalRecord.of("valid", 20, loss))
            metrics.write(EvalRecord.of("test", 30, loss + 0.5))
        (run_dir / "recipe.yml").write_text(f"model: {{num_layers: 2}}\noptimizer: {{lr: {lr}}}\n")
        environment = {"backend": {"name": "fake"}, "devices": ["Fake 1", "Fake 2"], "kernels": KERNELS}
        (run_dir / "environment.json").write_text(json.dumps(environment))
        return run_dir

    return make


def report(tmp_path, *run_dirs):
    write_report(run_dirs, tmp_path / "out/report.html")
    return (tmp_path / "out/report.html").read_text()


def test_a_page_shows_curves_numbers_kernels_environment_and_recipe(tmp_path, run):
    page = report(tmp_path, run("first"))
    for title in ("loss: training", "learning rate", "gradient norm", "throughput"):
        assert f"<figcaption>{title}" in page
    for cell in ("3.7000", "4.0000", "4.5000", "90.02", "fake", "8,192", "0:15"):
        assert f"<td>{cell}</td>" in page
    assert "fast (flash)" in page
    assert "slow of pretrain 0.1: declined: head size 512 &gt; 256" in page
    assert "<td>Fake 1, Fake 2</td>" in page
    assert "optimizer: {lr: 0.001}" in page


def test_a_page_has_the_latest_results_of_each_task(tmp_path, run):
    def record(accuracy):
        numbers = {"acc,none": accuracy, "acc_stderr,none": 0.125}
        return TaskRecord(iteration=30, task="words", num_fewshot=0, limit=None, metrics=numbers)

    assert "<summary>Tasks</summary>" not in report(tmp_path, run("without"))
    with closing(MetricsWriter(run("with") / "metrics.jsonl")) as metrics:
        for accuracy in (0.25, 0.75):
            metrics.write(record(accuracy))
    page = report(tmp_path, tmp_path / "with")
    cells = "".join(f"<td>{cell}</td>" for cell in ("30", "0", "-", "acc", "0.7500", "0.1250"))
    assert f'<th scope="row">words</th>{cells}' in page
    assert "0.2500" not in page


def test_a_page_needs_nothing_from_elsewhere(tmp_path, run):
    page = report(tmp_path, run("first"))
    assert not re.search(r"<script|<link|<img|@import|url\(|https?://", page)


def test_several_runs_are_drawn_over_each_other_with_what_differs(tmp_path, run):
    page = report(tmp_path, run("first"), run("second", lr=0.002))
    assert '<li class="c0">first</li><li class="c1">second</li>' in page
    assert '<th scope="row">optimizer.lr</th><td>0.001</td><td>0.002</td>' in page
    assert "model.num_layers</th>" not in page
    assert page.count('<g class="curve c1">') == 4


def test_runs_of_one_name_are_distinguished_by_their_paths(tmp_path, run):
    page = report(tmp_path, run("a/run"), run("b/run"))
    assert f">{tmp_path / 'a/run'}<" in page
    assert f">{tmp_path / 'b/run'}<" in page


def test_a_run_that_has_logged_nothing_is_left_out_of_a_page_of_several(tmp_path, run):
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "metrics.jsonl").touch()
    assert write_report([run("good"), begun], tmp_path / "report.html") == [begun]
    assert "good" in (tmp_path / "report.html").read_text()
    with pytest.raises(RunError, match="has logged no iteration"):
        write_report([begun], tmp_path / "report.html")


def test_names_cannot_break_the_page(tmp_path, run):
    assert "<b>x" not in report(tmp_path, run("<b>x"))


def test_a_run_of_which_only_metrics_are_left_is_shown(tmp_path, run):
    run_dir = run("first")
    (run_dir / "recipe.yml").unlink()
    (run_dir / "environment.json").unlink()
    assert "<figcaption>learning rate" in report(tmp_path, run_dir)


def test_a_run_that_only_evaluated_is_shown(tmp_path):
    with closing(MetricsWriter(tmp_path / "run/metrics.jsonl")) as metrics:
        metrics.write(EvalRecord.of("valid", 20, 2.0))
    assert "<td>2.0000</td>" in report(tmp_path, tmp_path / "run")


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda run_dir: None, "is not a directory"),
        (lambda run_dir: run_dir.mkdir(), "holds no metrics.jsonl"),
        (lambda run_dir: MetricsWriter(run_dir / "metrics.jsonl").close(), "has logged no iteration"),
    ],
)
def test_a_directory_without_metrics_is_an_error_and_nothing_is_written(tmp_path, prepare, words):
    prepare(tmp_path / "run")
    with pytest.raises(RunError, match=words):
        report(tmp_path, tmp_path / "run")
    assert not (tmp_path / "out").exists()


def test_a_damaged_environment_is_named(tmp_path, run):
    run_dir = run("first")
    (run_dir / "environment.json").write_text("{")
    with pytest.raises(RunError, match=r"environment\.json is not JSON"):
        report(tmp_path, run_dir)


def test_events_are_listed(tmp_path, run):
    run_dir = run("first")
    assert "Events" not in report(tmp_path, run_dir)
    with closing(MetricsWriter(run_dir / "metrics.jsonl")) as metrics:
        metrics.write(EventRecord(event="rollback", iteration=1020, text="loss 9 in iteration 1030: back"))
    page = report(tmp_path, run_dir)
    assert "Events" in page
    assert "<td>loss 9 in iteration 1030: back</td>" in page
