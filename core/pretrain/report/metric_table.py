"""Table of the metrics of a logged training interval: records, log line, loggers, report and docs read it.

CONTRIBUTING.md says how to add one. Every row says of every output whether it has the metric; there are no defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Values = Mapping[str, Any]  # value of each metric of the table by its name; None where there is none


@dataclass(frozen=True, slots=True)
class Line:
    """Part of the log line."""

    place: int  # orders the parts; tens, so that another one fits between
    text: str | Callable[[Values], str | None]  # of the value, or a function of all values; None leaves the part out
    scale: float = 1
    absent: str | None = None  # the part where there is no value; None leaves it out


@dataclass(frozen=True, slots=True)
class Tag:
    """Curve of TensorBoard and of trackers."""

    name: str  # Megatron's, where Megatron has the metric
    over_samples: bool  # there is a second curve, over samples


@dataclass(frozen=True, slots=True)
class Figure:
    """Chart of the report."""

    place: int  # orders the charts, in tens
    title: str  # name of the number, with its unit
    logarithmic: bool = False
    from_zero: bool = False
    only_if_it_varies: bool = False  # no chart of a constant


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One number, or word, of a training interval."""

    name: str  # its key in metrics.jsonl; rows stand in the order of the keys
    help: str  # for docs/metrics.md
    console: Line | None
    tensorboard: Tag | None
    figure: Figure | None
    optional: bool  # the key is left out where there is no value; it is null otherwise
    # Of a value that is a list, with a number for each layer or nan: its number for the log line and the chart.
    over_layers: Callable[[Sequence[float]], float] | None = None

    def number(self, value: Any) -> Any:
        """Return the one number, or word, of a value as a record or a line of metrics.jsonl has it."""
        if self.over_layers is None or value is None:
            return value
        numbers = [each for each in value if each is not None and math.isfinite(each)]
        return self.over_layers(numbers) if numbers else None


_SHORTEST_STEP = 0.1
"""Seconds of a step from which a line names the slowest rank: in a shorter one a pause of the system makes any rank the
slowest. metrics.jsonl names it in any case, and a rank that stays slow is warned of."""


def _slowest(values: Values) -> str | None:
    rank, slowdown = values["slowest_rank"], values["slowdown"]
    if rank is None or slowdown is None or values["seconds_per_iteration"] < _SHORTEST_STEP:
        return None
    return f"slowest rank {rank} +{100 * slowdown:.0f} % {values['slowdown_cause']}"


METRICS = (
    Metric(
        name="lm_loss",
        help="Loss in nats per token, the mean over the interval's iterations that were not skipped; null if all were. "
        "The loss of an iteration is the mean over the micro-batches of the global batch of their means over tokens; "
        "with `train.calculate_per_token_loss`, the mean over all tokens of the global batch.",
        console=Line(10, "loss {:.4f}", absent="loss nan"),
        tensorboard=Tag("lm loss", over_samples=True),
        figure=Figure(10, "loss: training, and validation dotted (nats per token)"),
        optional=False,
    ),
    Metric(
        name="grad_norm",
        help="Euclidean norm of the gradient before clipping, of the interval's last iteration; null if that was "
        "skipped.",
        console=Line(30, "grad norm {:.3f}", absent="grad norm nan"),
        tensorboard=Tag("grad-norm", over_samples=True),
        figure=Figure(30, "gradient norm before clipping", logarithmic=True),
        optional=False,
    ),
    Metric(
        name="learning_rate",
        help="Learning rate of the interval's last iteration.",
        console=Line(20, "lr {:.3e}"),
        tensorboard=Tag("learning-rate", over_samples=True),
        figure=Figure(20, "learning rate"),
        optional=False,
    ),
    Metric(
        name="loss_scale",
        help="Loss scale of fp16; null if the loss is not scaled.",
        console=Line(40, "loss scale {:g}"),
        tensorboard=Tag("loss-scale", over_samples=True),
        figure=Figure(50, "loss scale", logarithmic=True),
        optional=False,
    ),
    Metric(
        name="global_batch_size",
        help="Sequences of the interval's last iteration, over all ranks.",
        console=Line(70, "batch {}"),
        tensorboard=Tag("batch-size", over_samples=True),
        figure=Figure(60, "global batch size", only_if_it_varies=True),
        optional=False,
    ),
    Metric(
        name="skipped_iterations",
        help="Iterations of the interval without an update, because of an fp16 overflow or, with "
        "`train.loss_spike.action: skip`, of a loss spike.",
        console=Line(130, "skipped {}"),
        tensorboard=None,
        figure=None,
        optional=False,
    ),
    Metric(
        name="nan_iterations",
        help="Iterations of the interval whose loss was not finite.",
        console=Line(140, "nan {}"),
        tensorboard=None,
        figure=None,
        optional=False,
    ),
    Metric(
        name="seconds_per_iteration",
        help="Wall time of an iteration, evaluation and checkpoints excluded.",
        console=Line(80, "{:.3f} s/iteration"),
        tensorboard=Tag("iteration-time", over_samples=False),
        figure=None,
        optional=False,
    ),
    Metric(
        name="samples_per_second",
        help="Sequences per second of all ranks.",
        console=Line(90, "{:.2f} samples/s"),
        tensorboard=Tag("samples-per-second", over_samples=False),
        figure=None,
        optional=False,
    ),
    Metric(
        name="tokens_per_second_per_device",
        help="Tokens per second of all ranks, divided by the number of ranks.",
        console=Line(100, "{:.0f} tokens/s/device"),
        tensorboard=Tag("tokens-per-second-per-device", over_samples=False),
        figure=Figure(40, "throughput (tokens per second and device)", from_zero=True),
        optional=False,
    ),
    Metric(
        name="tflops_per_device",
        help="Model TFLOP/s of a device; attention counts the keys that a token sees. What experts drop counts as "
        "computed.",
        console=Line(110, "{:.3g} TFLOP/s/device"),
        tensorboard=Tag("throughput", over_samples=False),
        figure=None,
        optional=False,
    ),
    Metric(
        name="mfu",
        help="Share of the device's peak, 0 to 1; null if the backend declares no peak.",
        console=Line(120, "MFU {:.1f} %", scale=100),
        tensorboard=Tag("mfu", over_samples=False),
        figure=None,
        optional=False,
    ),
    Metric(
        name="memory_peak_bytes",
        help="Most memory of rank 0's device since the process began, on the CPU with that of Python and its "
        "libraries; null if the device does not report it.",
        console=Line(160, "memory {:.2f} GiB", scale=2**-30),
        tensorboard=Tag("mem-max-allocated-bytes", over_samples=False),
        figure=None,
        optional=False,
    ),
    Metric(
        name="params_norm",
        help="Euclidean norm of the parameters; with `logging.log_params_norm`.",
        console=Line(50, "params norm {:.3f}"),
        tensorboard=Tag("params-norm", over_samples=True),
        figure=None,
        optional=True,
    ),
    Metric(
        name="num_zeros_in_grad",
        help="Number of gradient entries that are zero, without the vocabulary's padding; with "
        "`logging.log_num_zeros_in_grad`.",
        console=Line(60, "zeros in grad {}"),
        tensorboard=Tag("num-zeros", over_samples=True),
        figure=None,
        optional=True,
    ),
    Metric(
        name="moe_load_balancing_loss",
        help="A list with the auxiliary loss of each layer, with its coefficient, the mean over the micro-batches of "
        "the interval's last iteration, null for a layer without experts; with "
        "`model.moe_router_load_balancing_type`. The log line has the mean over the layers, and TensorBoard a curve "
        "for each.",
        console=Line(62, "balance loss {:.4f}"),
        tensorboard=Tag("moe-load-balancing-loss", over_samples=True),
        figure=None,
        optional=True,
        over_layers=fmean,
    ),
    Metric(
        name="moe_z_loss",
        help="The same of the loss of the router's logits; with `model.moe_z_loss_coeff`.",
        console=Line(63, "z loss {:.4f}"),
        tensorboard=Tag("moe-z-loss", over_samples=True),
        figure=None,
        optional=True,
        over_layers=fmean,
    ),
    Metric(
        name="moe_most_loaded",
        help="A list with the load of each layer's fullest expert in the interval's last iteration, its tokens, "
        "dropped ones too, over the mean of the layer's experts: 1 where all have as many. The log line and the chart "
        "have the largest.",
        console=Line(64, "experts' load up to {:.2f}"),
        tensorboard=Tag("moe-most-loaded", over_samples=True),
        figure=Figure(55, "load of the fullest expert (times the mean)", from_zero=True),
        optional=True,
        over_layers=max,
    ),
    Metric(
        name="moe_least_loaded",
        help="The same of the expert with the fewest tokens.",
        console=None,
        tensorboard=Tag("moe-least-loaded", over_samples=True),
        figure=None,
        optional=True,
        over_layers=min,
    ),
    Metric(
        name="moe_dropped",
        help="The share of each layer's choices that no expert computed, 0.05 for 5 %, in the interval's last "
        "iteration; with `model.moe_expert_capacity_factor`. The log line has the largest.",
        console=Line(65, "dropped up to {:.1%}"),
        tensorboard=Tag("moe-dropped", over_samples=True),
        figure=None,
        optional=True,
        over_layers=max,
    ),
    Metric(
        name="slowest_rank",
        help="The rank whose own work takes longest; with several ranks and `logging.log_straggler`.",
        console=Line(150, _slowest),
        tensorboard=Tag("slowest-rank", over_samples=False),
        figure=None,
        optional=True,
    ),
    Metric(
        name="slowdown",
        help="Share by which the slowest rank is slower than the median of the others, 0.25 for 25 %.",
        console=None,  # the slowest rank's part has it
        tensorboard=Tag("slowest-rank-slowdown", over_samples=False),
        figure=None,
        optional=True,
    ),
    Metric(
        name="slowdown_cause",
        help='"compute", the slowest rank\'s attention kernels; or "data", its waiting for micro-batches.',
        console=None,  # the slowest rank's part has it
        tensorboard=None,
        figure=None,
        optional=True,
    ),
)
NAMES = tuple(metric.name for metric in METRICS)


def checked(values: Values) -> Values:
    """Return the values in the table's order; ValueError if the table lacks a row, or a row has no value."""
    unknown, unmeasured = values.keys() - set(NAMES), set(NAMES) - values.keys()
    if unknown:
        msg = f"report/metric_table.py has no row {', '.join(sorted(unknown))}.\nAdd one, as CONTRIBUTING.md says."
        raise ValueError(msg)
    if unmeasured:
        msg = f"no value for {', '.join(sorted(unmeasured))}.\ntraining/reporting/meter.py must give one, or None."
        raise ValueError(msg)
    return {name: values[name] for name in NAMES}


def console_parts(values: Values) -> list[str]:
    """Return the metrics' parts of the log line."""
    lines = [(metric.console, metric.number(values[metric.name])) for metric in METRICS if metric.console is not None]
    parts: list[str | None] = []
    for line, value in sorted(lines, key=lambda line: line[0].place):
        if callable(line.text):
            parts.append(line.text(values))
        else:
            parts.append(line.absent if value is None else line.text.format(value * line.scale))
    return [part for part in parts if part is not None]


def figures() -> list[tuple[str, Figure]]:
    """Return the metrics that have a chart, in the order of the charts."""
    drawn = [(metric.name, metric.figure) for metric in METRICS if metric.figure is not None]
    return sorted(drawn, key=lambda metric: metric[1].place)
