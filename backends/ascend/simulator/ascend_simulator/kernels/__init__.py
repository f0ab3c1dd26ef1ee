"""Kernels of torch_npu's own operators, which torch's CPU build has not. Importing them registers them."""

from ascend_simulator.kernels import (  # noqa: F401
    activation,
    attention,
    cross_entropy,
    dropout,
    experts,
    float_status,
    matmul,
    norm,
    rotary,
    softmax,
)
