"""The conformance kit: what every backend is judged by. It needs the extra `pretrain[testing]`.

The whole test file of a backend's author:

    from pretrain.testing.suite import *

    BACKEND = "cuda"

`BACKEND` is the value of `--backend`, or "package.module" of a plugin that is not installed. Every kernel that a plugin
offers is compared, forward and backward, with the reference kernels in float64; one that takes no request is a
failure. The device's module and memory are tested, and trainings on it have the cpu's losses (`TestTraining`; that
one needs a backend that is installed). `pretrain conformance --backend cuda` runs the same tests.
"""
