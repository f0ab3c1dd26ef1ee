"""DeepSpeed 0.19 on the device of any backend. Install it before anything imports deepspeed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import re
import sys
from inspect import getclosurevars
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import BackendError
from pretrain.machine import restored_variables

if TYPE_CHECKING:
    from types import ModuleType

    from pretrain.plugins.backend import Backend

FIRST_RELEASE = 8
"""First supported release of 0.19: it has `is_fp64_supported` and `_release_process_group_references`."""

_UNFOUNDED = ("untested optimizer", "FP16 params for CPUAdam")
"""Unfounded warnings: of DeepSpeedEngine._do_optimizer_sanity_check, about an intended choice; and of
DeepSpeedCPUAdam, although ZeRO steps fp32 weights."""

_CHOICE = "DS_ACCELERATOR"
_SET_AT_IMPORT = "PYTORCH_NVML_BASED_CUDA_CHECK"  # by deepspeed/__init__.py


def install(backend: Backend, *, planned: bool = False) -> ModuleType:
    """Select the backend's device as DeepSpeed's accelerator and return deepspeed; nothing is compiled."""
    version = _version()
    _check_choice(backend)
    imported = "deepspeed" in sys.modules
    own = has_accelerator(backend.device_type)
    try:
        with restored_variables(_CHOICE, _SET_AT_IMPORT):
            os.environ[_CHOICE] = backend.device_type if own else "cpu"
            import deepspeed  # noqa: PLC0415  reads the accelerator at import
    except ImportError as error:
        msg = f"deepspeed {version} is installed, but its import failed: {error}"
        raise BackendError(msg) from error
    from deepspeed.accelerator import get_accelerator, set_accelerator  # noqa: PLC0415

    from pretrain.bridge.deepspeed import accelerator as accelerators  # noqa: PLC0415  it imports deepspeed

    accelerator = get_accelerator()
    if imported and accelerator.device_name().partition(":")[0] != backend.device_type:
        msg = (
            f"DeepSpeed runs on {accelerator.device_name()} in this process; "
            f"{backend.device_type} needs a process of its own"
        )
        raise BackendError(msg)
    if isinstance(accelerator, accelerators.BackendAccelerator):
        accelerator.backend = backend
    else:
        set_accelerator(accelerators.make_accelerator(backend, type(accelerator) if own else None, planned=planned))
        _filter_warnings()
        _import_muon()
        # One optimizer for bf16 without ZeRO: with apex _configure_fp16_optimizer chooses another, of flat tensors.
        importlib.import_module("deepspeed.runtime.engine").APEX_INSTALLED = False  # type: ignore[attr-defined]
    if planned:
        accelerators.trust_other_ranks()
    return deepspeed  # type: ignore[no-any-return]


def has_accelerator(device_type: str) -> bool:
    """Return whether DeepSpeed has its own accelerator for the device, without importing DeepSpeed."""
    spec = importlib.util.find_spec("deepspeed")
    folders = spec.submodule_search_locations if spec else None
    return any(Path(folder, "accelerator", f"{device_type}_accelerator.py").is_file() for folder in folders or ())


def _version() -> str:
    remedy = 'pip install "pretrain[deepspeed]"'
    try:
        version = importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        msg = f"engine.name: deepspeed needs DeepSpeed, which is not installed.\n{remedy}"
        raise BackendError(msg) from None
    release = re.match(r"0\.19\.(\d+)", version)
    if release is None or int(release[1]) < FIRST_RELEASE:
        needed = f"0.19.{FIRST_RELEASE} or a later 0.19"
        msg = f"deepspeed {version} is installed; engine.name: deepspeed needs {needed}.\n{remedy}"
        raise BackendError(msg)
    return version


def _check_choice(backend: Backend) -> None:
    chosen = os.environ.get(_CHOICE, backend.device_type)
    if chosen != backend.device_type:
        msg = (
            f"{_CHOICE} is {chosen}, but the backend {backend.name} computes on {backend.device_type}.\n"
            f"Unset {_CHOICE}: the backend sets DeepSpeed's device."
        )
        raise BackendError(msg)


def _filter_warnings() -> None:
    """Send DeepSpeed's warnings to the root logger instead of stdout, and drop the unfounded ones."""
    logger = logging.getLogger("DeepSpeed")
    logger.handlers.clear()
    logger.propagate = True
    logger.addFilter(lambda record: not any(text in record.getMessage() for text in _UNFOUNDED))
    from deepspeed.runtime import bf16_optimizer  # noqa: PLC0415

    # Called four times when BF16_Optimizer is built: prints, collects garbage, and resets the device's memory peak.
    bf16_optimizer.see_memory_usage = lambda *_, **__: None


def _import_muon() -> None:
    """Import DeepSpeed's Muon without torch.compile, whose own imports take a second.

    ZeRO imports it only to check that the optimizer is not Muon (is_zero_supported_optimizer in runtime/zero/utils.py,
    DeepSpeedZeroOptimizer_Stage3.__init__).
    """
    from deepspeed.runtime import compiler  # noqa: PLC0415

    compile_ = compiler.compile
    compiler.compile = lambda: lambda function: function  # decorator in original_muon.py
    try:
        from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401, PLC0415
    finally:
        compiler.compile = compile_


def connect(backend: Backend) -> None:
    """Connect DeepSpeed to the default process group, which this rank has joined."""
    from deepspeed.accelerator import get_accelerator  # noqa: PLC0415
    from deepspeed.comm import comm  # noqa: PLC0415

    comm.init_distributed(backend.process_group, auto_mpi_discovery=False, verbose=False, dist_init_required=False)
    if "LOCAL_RANK" not in os.environ:
        # Read by DeepSpeedEngine._configure_with_arguments and zero.Init.__init__, although the device is set by now.
        accelerator = get_accelerator()
        accelerator.sets_local_rank = True
        os.environ["LOCAL_RANK"] = str(accelerator.current_device())


def disconnect() -> None:
    """Release all process groups and the model, so that the next training of this process can create others."""
    from deepspeed.accelerator import get_accelerator  # noqa: PLC0415
    from deepspeed.comm import comm  # noqa: PLC0415
    from deepspeed.runtime.activation_checkpointing import checkpointing  # noqa: PLC0415
    from deepspeed.runtime.zero import parameter_offload, partitioned_param_coordinator  # noqa: PLC0415
    from deepspeed.utils import groups  # noqa: PLC0415

    comm.cdb = None
    groups._release_process_group_references()  # noqa: SLF001
    checkpointing.mpu = checkpointing.mp_group = None
    parameter_offload.FWD_MODULE_STACK.clear()  # setup_zero_stage3_hooks adds the model; nothing removes it
    # `__params_to_release` is cached and keeps the modules of every training as arguments; a decorator hides the cache.
    coordinator = partitioned_param_coordinator.PartitionedParameterCoordinator
    decorated = getclosurevars(coordinator._PartitionedParameterCoordinator__params_to_release)  # noqa: SLF001
    decorated.nonlocals["func"].cache_clear()
    accelerator = get_accelerator()
    if accelerator.sets_local_rank:
        accelerator.sets_local_rank = False
        os.environ.pop("LOCAL_RANK", None)
