"""Import megatron.core through the translation."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import marshal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.atomic_files import replacing
from pretrain.bridge.megatron import source_translation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

    from pretrain.bridge.megatron.names import DeviceNames

PACKAGE = "megatron.core"


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
