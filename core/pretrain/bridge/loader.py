"""Importing megatron.core through the translation."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import marshal
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.bridge import translate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

    from pretrain.bridge.names import DeviceNames

PACKAGE = "megatron.core"


class TranslatingLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module's translated syntax tree and gives the module its device."""

    def __init__(self, fullname: str, path: str, names: DeviceNames) -> None:
        super().__init__(fullname, path)
        self._names = names

    def exec_module(self, module: ModuleType) -> None:
        """Run the module with the device's names in its globals."""
        setattr(module, translate.DEVICE, self._names)
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """Return the translated module's code from the cache beside Python's own, or compile and cache it."""
        path = Path(self.get_filename(fullname))
        cache = _cache_file(path)
        try:
            return marshal.loads(cache.read_bytes())  # type: ignore[no-any-return]  # noqa: S302  written below
        except (OSError, EOFError, ValueError, TypeError):
            code: CodeType = compile(
                translate.translate(path.read_bytes(), str(path)), str(path), "exec", dont_inherit=True
            )
            _write(cache, marshal.dumps(code))
            return code


class Finder(importlib.machinery.PathFinder):
    """Finds the modules of megatron.core, and leaves every other module to Python."""

    def __init__(self, names: DeviceNames) -> None:
        self._names = names

    @property
    def device_type(self) -> str:
        """The device that megatron.core is translated for."""
        return self._names.type

    def find_spec(  # type: ignore[override]  # an instance: it carries the device
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
    """Name the bytecode by the source's version and the translation's, as Python names its own."""
    stat = path.stat()
    key = f"{stat.st_mtime_ns}-{stat.st_size}-{translate.REVISION}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    plain = Path(importlib.util.cache_from_source(str(path)))
    return plain.with_name(f"{path.stem}.{sys.implementation.cache_tag}-pretrain-{digest}.pyc")


def _write(cache: Path, data: bytes) -> None:
    """Write atomically, since several ranks import at once; a folder that cannot be written is no fault."""
    try:
        cache.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=cache.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(cache)
    except OSError:
        pass
