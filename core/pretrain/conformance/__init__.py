"""Conformance kit for backends. It needs the extra `pretrain[conformance]`.

The whole test file of a backend's author:

    from pretrain.conformance.suite import *

    BACKEND = "cuda"

`BACKEND` is the value of `--backend`, or "package.module" of a plugin that is not installed. Every kernel that a plugin
offers is compared, forward and backward, with the reference kernels in float64; a kernel that takes no request fails.
The device's module and memory are tested. A training on the device must have the losses of the cpu (`TestTraining`,
which needs an installed backend). `pretrain conformance --backend cuda` runs the same tests.
"""
