"""Times a matmul on every rank, to find slow ones."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from pretrain.report.plain_text import rank_names
from pretrain.tools.doctor.device_speed import synchronize
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks.own_steps import all_have_devices
from pretrain.tools.doctor.ranks.step import ExaminationStep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pretrain.tools.doctor.ranks.status_board import StatusBoard
    from pretrain.tools.doctor.ranks.step import Answers


_SIZES = (256, 512, 1024, 2048, 4096, 8192)
_LONG = 2e-3
"""Seconds of a product that are enough to compare: starting it on a device takes about 1e-5."""
_TIME, _LEAST = 0.4, 5
"""Seconds for which products of one size are repeated, and how often at least; the fastest counts, since other
processes only make one slower."""
_SLOWER = 1.1


def measure_speed(device: torch.device, dtype: torch.dtype, doing: Callable[[str], None]) -> dict[str, float]:
    """Return the seconds of the fastest product of two square matrices of each size, up to one that takes 2 ms.

    Args:
        device: of this rank, the current one of this thread.
        dtype: of the matrices.
        doing: told what is measured now.
    """
    found: dict[str, float] = {}
    for size in _SIZES:
        doing(f"multiply matrices of {size} x {size}")
        found[str(size)] = _fastest(torch.randn(size, size, device=device).to(dtype))
        if found[str(size)] >= _LONG:
            break
    return found


def judge_speed(seconds: Mapping[int, Mapping[str, float]]) -> list[Finding]:
    """Name the ranks that are more than 10 % slower than the median.

    Args:
        seconds: what `measure_speed` returned, by rank; the largest size that all have is compared.
    """
    if len(seconds) < 2:
        return []
    size = max(int(each) for each in set.intersection(*(set(of) for of in seconds.values())))
    times = {rank: each[str(size)] for rank, each in seconds.items()}
    usual, slowest = median(times.values()), max(times, key=lambda rank: times[rank])
    what = f"a product of {size} x {size}"
    slow = sorted(rank for rank, each in times.items() if each > _SLOWER * usual)
    if not slow:
        text = f"{what} in {1e3 * usual:.2f} ms; the slowest of {len(times)} ranks, {slowest}, is "
        text += f"{_percent(times[slowest], usual)} over the median"
        return [Finding(check="rank speed", verdict=Verdict.OK, text=text)]
    text = (
        f"{rank_names(slow)}: {what} takes {1e3 * times[slowest]:.2f} ms on rank {slowest}, "
        f"{_percent(times[slowest], usual)} over the median of {len(times)} ranks, {1e3 * usual:.2f} ms"
    )
    remedy = "all ranks wait for the slowest: look at its clocks, temperature, power limit, other processes"
    return [Finding(check="rank speed", verdict=Verdict.LOOK, text=text, remedy=remedy, ranks=tuple(slow))]


def _fastest(matrix: torch.Tensor) -> float:
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < _LEAST or time.perf_counter() - begun < _TIME:
        synchronize(matrix.device)
        started = time.perf_counter()
        matrix @ matrix
        synchronize(matrix.device)
        times.append(time.perf_counter() - started)
    return min(times[1:])  # the first chooses an algorithm


def _percent(value: float, usual: float) -> str:
    return f"{100 * (value / usual - 1):.0f} %"


@dataclass(frozen=True, slots=True)
class SpeedStep(ExaminationStep):
    """A matrix product on every rank at once."""

    board: StatusBoard
    device: torch.device | None
    dtype: torch.dtype
    name = "rank speed"

    def orders(self, known: Mapping[str, Answers]) -> Any:
        """Leave it out unless every rank has its device."""
        return {} if all_have_devices(known) else None

    def measure(self, orders: Any) -> Any:  # noqa: ARG002
        """Measure this rank's device."""
        assert self.device is not None  # noqa: S101  every rank has said that it has one
        return measure_speed(self.device, self.dtype, self.board.doing)

    def judge(self, answers: Answers) -> list[Finding]:
        """Name the slow ranks."""
        return judge_speed(answers)
