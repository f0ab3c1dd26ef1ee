"""Python imports this at its start in processes of these tests: nodes of a hostfile run a fake training.

FAKE_TRAINING is a function of `fake_training`, as the training of `pretrain run`.
"""

import os
import sys
from types import ModuleType

if "FAKE_TRAINING" in os.environ and "PRETRAIN_HOSTFILE_NODE" in os.environ:

    def _train(*arguments, **options):
        import fake_training

        return getattr(fake_training, os.environ["FAKE_TRAINING"])(*arguments, **options)

    _module = ModuleType("pretrain.training.run")
    _module.train = _train
    sys.modules["pretrain.training.run"] = _module
    if "PRETRAIN_LAUNCHER_PID" not in os.environ:  # a node, and not a rank of it
        import ctypes

        ctypes.CDLL(None).prctl(1, 9)  # ends with the fake launcher
