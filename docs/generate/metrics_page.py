"""docs/metrics.md, generated from the table of metrics.

Run `.venv/bin/python docs/generate/metrics_page.py` after changing a row.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.report.metric_table import METRICS

if TYPE_CHECKING:
    from pretrain.report.metric_table import Metric

PAGE = "metrics.md"

_INTRODUCTION = """\
# Metrics

Generated from `core/pretrain/report/metric_table.py` (`python docs/generate/metrics_page.py`).

`metrics.jsonl` of a run directory has one JSON object a line. A line of kind `train` is a logged interval. Its keys are
`kind`; `iteration`, the iterations done since the training began; `consumed_samples`, the sequences read until then;
`consumed_tokens`, these times the sequence length; and the keys of the table in their order. A value that is not finite
is null. Optional keys are left out where there is no value. Lines of kind `eval` have `split`, `iteration`, `lm_loss`
and `ppl`; those of kind `event` have `event`, `iteration`, `text` and numbers of their own.

The other columns say how the log line shows a metric, its curve in TensorBoard and in every tracker
([loggers.md](loggers.md)), and its chart in `report.html`. A curve with "vs samples" has a second one in TensorBoard,
over samples, in the folder `samples`.

| key | meaning | log line | curve | chart of the report |
| --- | --- | --- | --- | --- |
"""


def page() -> str:
    """Return docs/metrics.md."""
    return _INTRODUCTION + "".join(f"{_row(metric)}\n" for metric in METRICS)


def _row(metric: Metric) -> str:
    key = f"`{metric.name}`{', optional' if metric.optional else ''}"
    cells = (key, metric.help, _console(metric), _tag(metric), metric.figure.title if metric.figure else "")
    return f"| {' | '.join(cells)} |"


def _console(metric: Metric) -> str:
    if metric.console is None:
        return ""
    return "with other metrics" if callable(metric.console.text) else f"`{metric.console.text}`"


def _tag(metric: Metric) -> str:
    if metric.tensorboard is None:
        return ""
    return f"`{metric.tensorboard.name}`{', vs samples' if metric.tensorboard.over_samples else ''}"


if __name__ == "__main__":
    (Path(__file__).parents[1] / PAGE).write_text(page(), encoding="utf-8")
