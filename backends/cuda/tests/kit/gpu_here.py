"""A pytest plugin for which a GPU is here, as far as names decide: `pytest -p kit.gpu_here`."""

from pretrain_cuda import devices

devices._here = lambda: ("NVIDIA H200", devices.HOPPER)
