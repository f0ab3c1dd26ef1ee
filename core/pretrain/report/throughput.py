"""Compute the speed of an interval for the metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """The metrics of speed, by the table's names (`metric_table`)."""

    seconds_per_iteration: float
    samples_per_second: float
    tokens_per_second_per_device: float
    tflops_per_device: float
    mfu: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Speedometer:
    """Constants of a run for the computation of its speed.

    Attributes:
        seq_length: tokens of a sequence.
        flops_per_sequence: see `flops.flops_per_sequence`.
        world_size: ranks, one device each.
        peak_flops: FLOP/s of one device (`Backend.peak_flops`); None: MFU is not reported.
    """

    seq_length: int
    flops_per_sequence: int
    world_size: int
    peak_flops: float | None

    def measure(self, *, iterations: int, samples: int, seconds: float) -> Throughput:
        """Return the speed of an interval.

        Args:
            iterations: number of iterations in the interval, skipped ones included.
            samples: sequences of all of them over all ranks; the batch may have grown within the interval.
            seconds: wall time of the interval.
        """
        samples_per_second = samples / seconds
        flops = samples_per_second * self.flops_per_sequence / self.world_size
        return Throughput(
            seconds_per_iteration=seconds / iterations,
            samples_per_second=samples_per_second,
            tokens_per_second_per_device=samples_per_second * self.seq_length / self.world_size,
            tflops_per_device=flops / 1e12,
            mfu=None if self.peak_flops is None else flops / self.peak_flops,
        )
