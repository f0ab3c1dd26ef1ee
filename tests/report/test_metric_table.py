"""Each row of the table of metrics is where it says, and nothing else is."""

from contextlib import closing

import pytest

from pretrain.report.loggers.curves import of_train
from pretrain.report.metric_table import METRICS, NAMES
from pretrain.report.metrics import MetricsWriter, train_line
from pretrain.report.run_page import page, read_runs
from report.loggers.test_tensorboard import board_of, curves


def numbers():
    """Return a value for each metric, a different one; a list of one layer where they are lists."""
    of_rows = enumerate(METRICS, 1)
    return {metric.name: place * 1.0 if metric.over_layers is None else [place * 1.0] for place, metric in of_rows}


def tag_of(metric):
    return metric.tensorboard.name if metric.over_layers is None else f"{metric.tensorboard.name}/layer 1"


@pytest.mark.parametrize(
    "identity",
    [
        lambda metric: metric.name,
        lambda metric: metric.tensorboard and metric.tensorboard.name,
        lambda metric: metric.console and metric.console.place,
        lambda metric: metric.figure and metric.figure.place,
    ],
    ids=["name", "tag", "place on the line", "place among the charts"],
)
def test_no_two_rows_have_the_same(identity):
    given = [found for metric in METRICS if (found := identity(metric)) is not None]
    assert len(given) == len(set(given))


def test_a_value_without_a_row_is_an_error(train_record):
    with pytest.raises(ValueError, match=r"report/metric_table\.py has no row largest_loss"):
        train_record(largest_loss=1.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_without_a_value_is_an_error(train_record, name):
    kept = {kept: value for kept, value in train_record().metrics.items() if kept != name}
    with pytest.raises(ValueError, match=f"no value for {name}"):
        type(train_record())(iteration=1, consumed_samples=1, consumed_tokens=1, metrics=kept)


def test_the_log_line_has_the_parts_of_all_rows(train_record):
    parts = train_line(train_record(**numbers()), 100).split(" | ")
    assert len(parts) == 3 + sum(metric.console is not None for metric in METRICS)  # iteration, samples, time left


def test_tensorboard_has_the_tags_of_all_rows(train_record, tmp_path):
    with board_of(tmp_path) as board:
        board.metrics(of_train(train_record(**numbers())))
    tags = {tag_of(metric): metric.number(numbers()[metric.name]) for metric in METRICS if metric.tensorboard}
    assert {tag: value for tag, ((_, value),) in curves(tmp_path / "tensorboard").items()} == tags


def test_the_report_has_the_charts_of_all_rows_and_no_curve_without_a_row(train_record, tmp_path):
    with closing(MetricsWriter(tmp_path / "metrics.jsonl")) as writer:
        for iteration in (1, 2):
            writer.write(train_record(iteration, **numbers() | {"global_batch_size": iteration}))
    (run,) = read_runs([tmp_path])
    drawn = page([run])
    assert [metric.name for metric in METRICS if metric.figure and metric.figure.title not in drawn] == []
    with pytest.raises(ValueError, match=r"report/metric_table\.py has no row largest_loss"):
        run.curve("largest_loss")
