"""megatron-core 0.16.1 on the device of any backend. Install it before anything imports megatron.core."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import TYPE_CHECKING

from pretrain.bridge.loader import PACKAGE, Finder
from pretrain.errors import BackendError

if TYPE_CHECKING:
    from pretrain.plugins.backend import Backend


def install(backend: Backend) -> None:
    """Let every later import of megatron.core run on the backend's device; nothing changes for CUDA.

    Calling it again for the same device does nothing. A process trains on one device: another one is an error, and so
    is a megatron.core that was imported before.
    """
    _quieten()
    installed = next((finder for finder in sys.meta_path if isinstance(finder, Finder)), None)
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
    from pretrain.bridge.names import DeviceNames  # noqa: PLC0415  torch is imported only from here on

    sys.meta_path.insert(0, Finder(DeviceNames(backend)))
    if backend.device_type == "cpu":
        # The device's generator is the CPU's own here: tensor_parallel/random.py 260 warns at every dropout.
        logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)


def _quieten() -> None:
    """Silence warnings about choices that are made on purpose here, at every start and on every rank."""
    for message in (
        ".*(Apex|Transformer Engine).* not installed",  # optimizer/__init__.py 23 and others: kernels are negotiated
        "full scope is deprecated",  # transformer_config.py 1705: its own default
        ".*all_gather_into_tensor. is deprecated",  # torch 2.13 about tensor_parallel/mappings.py
        ".*reduce_scatter_tensor. is deprecated",
        "When using (async grad allreduce|sequence parallelism) it is recommended",  # tensor_parallel/layers.py 738
        "The .grad attribute of a Tensor that is not a leaf",  # optimizer.py 66 looks at the shards it made itself
    ):
        warnings.filterwarnings("ignore", message=message)
    # Checkpoints: megatron-core calls what torch 2.13 will drop, and torch's own planner does so too.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(megatron\.core|torch\.distributed)\.")
    # transformer_layer.py 379 knows only its own MLP classes by name.
    logging.getLogger("megatron.core.transformer.transformer_layer").setLevel(logging.ERROR)
