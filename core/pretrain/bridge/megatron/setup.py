"""Run megatron-core 0.16.1 on the device of any backend: its modules are imported through the translation."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import logging
import marshal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.atomic_files import replacing
from pretrain.bridge.megatron import source_translation
from pretrain.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

    from pretrain.bridge.megatron.names import DeviceNames
    from pretrain.plugins.backend import Backend


PACKAGE = "megatron.core"


def install(backend: Backend, *, planned: bool = False) -> None:
    """Make every later import of megatron.core use the backend's device; nothing changes for CUDA.

    A process trains on one device: another one is an error, and so is a megatron.core that was imported before.
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
    """Leave out the imports of torch.compile (two seconds), in a process that only reads data, before megatron.core."""
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
    # It warns of an optimizer without weights: that of experts, in a pipeline stage that has none.
    logging.getLogger("megatron.core.dist_checkpointing.optimizer").setLevel(logging.ERROR)


class TranslatingLoader(importlib.machinery.SourceFileLoader):
    """Compile a module's translated syntax tree and give the module its device."""

    def __init__(self, fullname: str, path: str, names: DeviceNames) -> None:
        super().__init__(fullname, path)
        self._names = names

    def exec_module(self, module: ModuleType) -> None:
        """Run the module with the device's names in its globals."""
        setattr(module, source_translation.DEVICE, self._names)
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """Return the translated module's code from the cache beside Python's own, or compile and cache it."""
        path = Path(self.get_filename(fullname))
        cache = _cache_file(path)
        try:
            return marshal.loads(cache.read_bytes())  # type: ignore[no-any-return]  # noqa: S302  written below
        except (OSError, EOFError, ValueError, TypeError):
            code: CodeType = compile(
                source_translation.translate(path.read_bytes(), str(path)), str(path), "exec", dont_inherit=True
            )
            # Atomic, because ranks import at the same time; a folder that cannot be written is ignored.
            with suppress(OSError), replacing(cache, error=None, durable=False) as file:
                file.write(marshal.dumps(code))
            return code


class Finder(importlib.machinery.PathFinder):
    """Find the modules of megatron.core, and leave every other module to Python."""

    def __init__(self, names: DeviceNames) -> None:
        self._names = names

    @property
    def device_type(self) -> str:
        """The device that megatron.core is translated for."""
        return self._names.device_type

    def find_spec(  # type: ignore[override]  # an instance, because it has the device
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the usual spec with the translating loader."""
        if fullname != PACKAGE and not fullname.startswith(f"{PACKAGE}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = TranslatingLoader(fullname, spec.loader.path, self._names)
        return spec


def _cache_file(path: Path) -> Path:
    """Return the bytecode's path, named by the versions of the source and of the translation."""
    stat = path.stat()
    key = f"{stat.st_mtime_ns}-{stat.st_size}-{source_translation.REVISION}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    plain = Path(importlib.util.cache_from_source(str(path)))
    return plain.with_name(f"{path.stem}.{sys.implementation.cache_tag}-pretrain-{digest}.pyc")
