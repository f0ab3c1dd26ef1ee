"""Finds loss spikes: all ranks agree on the loss of each step, and compare it with the steps before."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from pretrain.engine.protocol import Step
    from pretrain.training.progress import Progress
    from pretrain.training.rank_setup import RankSetup
    from pretrain.training.stopping import Exchange


@dataclass(frozen=True, kw_only=True, slots=True)
class Spike:
    """A loss that has gone wrong, or gradients or weights that have."""

    iteration: int  # whose step had it, before its update; of weights, after whose update
    loss: float  # mean over the global batch, nats per token; may be nan or infinite
    median: float | None  # of the steps before; None before there are enough
    # Gradients and weights are not finite, where the loss shows nothing.
    of: Literal["loss", "gradients", "weights"] = "loss"


@dataclass(frozen=True, slots=True)
class _StepLoss:
    """A step whose loss is not judged yet; all ranks see the same iterations and skipped steps."""

    iteration: int
    read: Callable[[], float] | None  # waits for the loss; None where this rank has none
    is_skipped: bool


class SpikeWatch:
    """Finds spikes in losses that all ranks exchange (`pretrain.training.stopping.Exchange`).

    The loss of a step is on the host when the next step has been given to the device, is exchanged in that iteration,
    and is judged in the one after: nothing waits for it. `settle` judges all losses so far at once. Where `keeps` is
    asked in each step (`is_early`), the loss is judged before the update, and the host waits for it.

    `judges_nan`: a loss that is not finite is a spike, and a step that the engine has skipped because of its gradients,
    as DeepSpeed does in every precision; fp16 recovers from both. `losses`, of the last steps, change in place.
    """

    size = 2

    @classmethod
    def of(cls, setup: RankSetup, progress: Progress) -> SpikeWatch | None:
        """Return the watch of the losses that follow those of `progress`; None, and these forgotten, if it is off."""
        spike = setup.recipe.train.loss_spike
        if spike.threshold is None:
            progress.losses.clear()
            return None
        return cls(
            spike.threshold,
            HostCopies(setup.device, pin_memory=setup.pin_memory),
            progress.losses,
            judges_nan=setup.recipe.precision.dtype != "fp16",
            is_early=spike.action == "skip",
        )

    def __init__(
        self, threshold: float, copies: HostCopies, losses: list[float], *, judges_nan: bool, is_early: bool
    ) -> None:
        self._window, self._copies = LossWindow(threshold, losses), copies
        self._judges_nan, self._is_early = judges_nan, is_early
        self._found: deque[Spike] = deque()
        self._latest: _StepLoss | None = None
        self._ready: _StepLoss | None = None
        self._sent: _StepLoss | None = None

    def see(self, iteration: int, step: Step) -> None:
        """Take the loss of a step; does not wait for the device."""
        if self._is_early or (step.skipped and not self._judges_nan):
            return
        read = None if step.loss is None else self._copies.start(step.loss)
        self._latest = _StepLoss(iteration, read, step.skipped)

    def keeps(self, iteration: int, loss: Tensor | None, exchange: Exchange) -> bool:
        """Say whether a step's update is to be made; waits for its loss. All ranks call it together."""
        own = [0.0, 0.0] if loss is None else [loss.item(), 1.0]
        return not self._judge(_StepLoss(iteration, None, is_skipped=False), exchange.sum_now(own))

    def settle(self, exchange: Exchange) -> None:
        """Judge the losses of all steps so far, and wait for them; all ranks call it together."""
        while self._ready is not None or self._latest is not None:
            exchange.turn()
        exchange.settle()

    def take(self) -> Spike | None:
        """Return the earliest spike that was not returned before."""
        return self._found.popleft() if self._found else None

    def forget(self, exchange: Exchange) -> None:
        """Leave out the steps that were not judged yet: they are taken back."""
        exchange.settle()
        self._latest = self._ready = None
        self._found.clear()

    def own(self) -> list[float]:
        """Return the sum and the number of the losses that this rank has of the step before the latest."""
        self._sent, self._ready, self._latest = self._ready, self._latest, None
        if self._sent is None or self._sent.read is None:
            return [0.0, 0.0]
        return [self._sent.read(), 1.0]

    def agreed(self, sums: Sequence[float]) -> None:
        """Judge the mean over the ranks that have a loss, which is that over the global batch."""
        if self._sent is not None:
            self._judge(self._sent, sums)
            self._sent = None

    def _judge(self, seen: _StepLoss, sums: Sequence[float]) -> bool:
        total, count = sums
        loss = total / count
        is_high = (math.isfinite(loss) or self._judges_nan) and self._window.is_spike(loss)
        is_spike = is_high or seen.is_skipped
        if is_spike:
            of: Literal["loss", "gradients"] = "loss" if is_high else "gradients"
            self._found.append(Spike(iteration=seen.iteration, loss=loss, median=self._window.median, of=of))
        if not (seen.is_skipped or (is_spike and self._is_early)):  # no update was made
            self._window.add(loss)
        return is_spike


WINDOW = 100
"""Steps whose median a loss is compared with. Megatron-LM's check_for_spiky_loss also keeps 100, and compares with
their maximum (is_unexpectedly_large in megatron/core/rerun_state_machine.py)."""
FEWEST = 20  # steps after which losses are judged: before, the first steps of a training fall too fast for a median


@dataclass(slots=True)
class LossWindow:
    """Losses of the last `WINDOW` steps that were taken."""

    threshold: float  # a loss above so many times their median is a spike
    losses: list[float] = field(default_factory=list)  # nats per token, the latest last; changed in place

    @property
    def median(self) -> float | None:
        """Median of the losses; None before `FEWEST` of them."""
        return median(self.losses) if len(self.losses) >= FEWEST else None

    def is_spike(self, loss: float) -> bool:
        """Say whether a loss is a spike; one that is not finite is always above the threshold."""
        usual = self.median
        return not math.isfinite(loss) or (usual is not None and loss > self.threshold * usual)

    def add(self, loss: float) -> None:
        """Add the loss of a step that was taken; one that is not finite is left out."""
        if math.isfinite(loss):
            self.losses.append(loss)
            del self.losses[:-WINDOW]


_PLACES = 4  # copies that can be on their way at a time


class HostCopies:
    """Fp32 scalars on their way to the host: a copy and an event behind it, in page-locked memory if there is any."""

    def __init__(self, device: torch.device, *, pin_memory: bool) -> None:
        self._device = device
        self._places = torch.zeros(_PLACES, pin_memory=pin_memory and device.type != "cpu")
        self._next = 0

    def start(self, value: Tensor) -> Callable[[], float]:
        """Begin to copy a scalar; return a function that waits for it, but not for work given to the device later."""
        module = torch.get_device_module(self._device)
        if self._device.type == "cpu" or not hasattr(module, "Event"):
            return value.detach().cpu().item
        place = self._places[self._next]
        self._next = (self._next + 1) % _PLACES
        place.copy_(value.detach(), non_blocking=True)
        event = module.Event()
        event.record()

        def read() -> float:
            event.synchronize()
            return place.item()

        return read
