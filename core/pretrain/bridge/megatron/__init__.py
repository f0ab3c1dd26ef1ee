"""Run megatron-core 0.16.1 on the device of any backend. Install this before anything imports megatron.core."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import TYPE_CHECKING

from pretrain.bridge.megatron.loader import PACKAGE, Finder
from pretrain.errors import BackendError

if TYPE_CHECKING:
    from pretrain.plugins.backend import Backend


def install(backend: Backend, *, planned: bool = False) -> None:
    """Make every later import of megatron.core use the backend's device; nothing changes for CUDA.

    Calling it again for the same device does nothing. A process trains on one device: another one is an error, and so
    is a megatron.core that was imported before.

    Args:
        backend: of the device.
        planned: the device is that of a plan's fake tensors (`pretrain.bridge.planning`).
    """
    _filter_warnings()
    installed = _finder()
    if installed is not None:
        if installed.device_type != backend.device_type:
            msg = f"this process trains on {installed.device_type}; {backend.device_type} needs a process of its own"
            raise BackendError(msg)
        return
    if backend.device_type == "cuda":
        return
    if PACKAGE in sys.modules:
        msg = f"{PACKAGE} was imported before the bridge for {backend.device_type}. Install the bridge first."
        raise BackendError(msg)
    from pretrain.bridge.megatron.names import DeviceNames, PlannedNames  # noqa: PLC0415  torch is imported from here on

    sys.meta_path.insert(0, Finder(PlannedNames(backend) if planned else DeviceNames(backend)))
    if backend.device_type == "cpu":
        # The device's generator is the CPU's own here, of which CudaRNGStatesTracker.fork warns at every dropout.
        logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)


def device_type() -> str:
    """Return torch's name of the device that megatron-core runs on in this process: CUDA where nothing is installed."""
    installed = _finder()
    return "cuda" if installed is None else installed.device_type


def _finder() -> Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, Finder)), None)


def prepare_to_read() -> None:
    """Leave out the imports of torch.compile, in a process that only reads data and has not imported megatron.core.

    megatron-core decorates functions with it, whatever a process does then, and its first call imports the compiler:
    two seconds of processor time.
    """
    import torch  # noqa: PLC0415  imported only from here on

    from pretrain.bridge.megatron.names import as_is  # noqa: PLC0415  it imports torch

    torch.compile = as_is  # type: ignore[assignment]  # in both of its ways to be called


def _filter_warnings() -> None:
    """Silence warnings about intended choices, which would come at every start from every rank."""
    for message in (
        ".*(Apex|Transformer Engine).* not installed",  # import of optimizer and others; kernels are negotiated
        "full scope is deprecated",  # TransformerConfig.__post_init__, about its own default
        ".*all_gather_into_tensor. is deprecated",  # torch 2.13 about tensor_parallel/mappings.py
        ".*reduce_scatter_tensor. is deprecated",
        "When using (async grad allreduce|sequence parallelism) it is recommended",  # tensor_parallel/layers.py
        "The .grad attribute of a Tensor that is not a leaf",  # _zero_grad_group_helper, about its own shards
    ):
        warnings.filterwarnings("ignore", message=message)
    # Checkpoints: megatron-core and torch's own planner call functions that are deprecated in torch 2.13.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(megatron\.core|torch\.distributed)\.")
    # TransformerLayer.__init__ warns of any MLP class other than its own.
    logging.getLogger("megatron.core.transformer.transformer_layer").setLevel(logging.ERROR)
