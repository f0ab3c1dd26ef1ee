"""The repository's own files: the modules of the core and of the backends, parsed, and everything that is tracked."""

from __future__ import annotations

import ast
import functools
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core"
BACKENDS = ROOT / "backends"


@dataclass(frozen=True)
class Source:
    """One module; `name` is its path below core/pretrain, or below backends/<name>/src."""

    name: str
    text: str
    tree: ast.Module


@functools.cache
def core() -> tuple[Source, ...]:
    """Return every module of the core."""
    return _modules(CORE / "pretrain")


@functools.cache
def backends() -> tuple[Source, ...]:
    """Return every module of the backends that have a distribution of their own."""
    return tuple(source for folder in sorted(BACKENDS.glob("*/src")) for source in _modules(folder))


@functools.cache
def tracked() -> tuple[Path, ...]:
    """Return every text file that git tracks, relative to the root; a copy without git skips the test."""
    if not (ROOT / ".git").exists():
        pytest.skip("no git: which files belong to the repository is not known", allow_module_level=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file())


def _modules(folder: Path) -> tuple[Source, ...]:
    texts = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    return tuple(Source(name, text, ast.parse(text, name)) for name, text in sorted(texts.items()))
