import resource
from contextlib import contextmanager

import pytest

from pretrain.report.metrics import TrainRecord

TRAIN = {"iteration": 10, "consumed_samples": 80, "consumed_tokens": 81920}
METRICS = {
    "lm_loss": 4.25,
    "grad_norm": 1.5,
    "learning_rate": 3e-4,
    "loss_scale": None,
    "global_batch_size": 8,
    "skipped_iterations": 0,
    "nan_iterations": 0,
    "seconds_per_iteration": 0.5,
    "samples_per_second": 16.0,
    "tokens_per_second_per_device": 8192.0,
    "tflops_per_device": 7.0,
    "mfu": None,
    "memory_peak_bytes": None,
    "params_norm": None,
    "num_zeros_in_grad": None,
    "moe_load_balancing_loss": None,
    "moe_z_loss": None,
    "moe_most_loaded": None,
    "moe_least_loaded": None,
    "moe_dropped": None,
    "slowest_rank": None,
    "slowdown": None,
    "slowdown_cause": None,
}


@pytest.fixture
def train_record():
    """Makes a record of the iteration; other fields and metrics as given."""

    def record(iteration=10, **changes):
        fields = TRAIN | {"iteration": iteration} | {name: changes.pop(name) for name in TRAIN if name in changes}
        return TrainRecord(**fields, metrics=METRICS | changes)

    return record


@contextmanager
def room_for(path, size):
    """Let this process add no more than so many bytes to a file, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
