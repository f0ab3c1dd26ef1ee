"""`torch.abacus`: the members that torch and pretrain need of a device's module. Its one device is synchronous."""

import torch


class Bytes:
    """Storage of this process."""

    in_use = 0
    peak = 0

    @classmethod
    def count(cls, nbytes):
        """Count the allocation of so many bytes, or with a negative number their release."""
        cls.in_use += nbytes
        cls.peak = max(cls.peak, cls.in_use)


def is_available():
    return True


def is_initialized():
    return True


def _lazy_init():
    pass


def _is_in_bad_fork():
    return False


def device_count():
    return 1


def current_device():
    return 0


def set_device(device):
    pass


def synchronize(device=None):
    pass


# From Python no generator of a PrivateUse1 device can be made: what is drawn on the device is drawn from the CPU's.
def manual_seed(seed):
    torch.default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def get_rng_state(device=None):
    return torch.default_generator.get_state()


def set_rng_state(state, device=None):
    torch.default_generator.set_state(state)


def memory_allocated(device=None):
    return Bytes.in_use


def max_memory_allocated(device=None):
    return Bytes.peak


def reset_peak_memory_stats(device=None):
    Bytes.peak = Bytes.in_use
