import pytest

from pretrain.report.flops import Speedometer


def test_the_speed_of_an_interval():
    speedometer = Speedometer(seq_length=1000, flops_per_sequence=4 * 10**12, world_size=2, peak_flops=5e13)
    speed = speedometer.measure(iterations=10, samples=80, seconds=5.0)
    assert speed.seconds_per_iteration == 0.5
    assert speed.samples_per_second == 16
    assert speed.tokens_per_second_per_device == 8000
    assert speed.tflops_per_device == pytest.approx(32)
    assert speed.mfu == pytest.approx(0.64)


def test_without_a_declared_peak_there_is_no_mfu():
    speedometer = Speedometer(seq_length=1, flops_per_sequence=1, world_size=1, peak_flops=None)
    assert speedometer.measure(iterations=1, samples=1, seconds=1.0).mfu is None
