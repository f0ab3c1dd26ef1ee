"""Documents of the Python standard library's source text: a corpus that every machine with Python has.

One file is one document, as it is on disk. Left out are:

- test suites (folders `test`, `tests`, `idle_test`), whose text is mostly repetition;
- `idlelib`, `lib2to3`, `turtledemo` (programs), `ensurepip` (carries packages of others), `pydoc_data` and `encodings`
  (generated tables), and everything that was installed later (`site-packages`, `dist-packages`);
- `_sysconfigdata*`, which describes how this one interpreter was built;
- files below 500 bytes or above 300,000 bytes, and files that are not UTF-8;
- data tables in Python syntax: fewer than 44 % of the characters are letters (`html/entities.py`, `stringprep.py`);
- exact duplicates of earlier files.

The order is that of the SHA-256 of each file's path, so that training, validation and test text, which are
consecutive parts, are all a fair sample. One Python version gives one corpus; another version gives a similar one.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDERS_LEFT_OUT = {
    *("test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data", "encodings"),
    *("site-packages", "dist-packages", "__pycache__"),
}
_BUILD_DATA = "_sysconfigdata"
_SMALLEST = 500
_LARGEST = 300_000
_LETTERS = 0.44


def stdlib_documents(folder: Path | None = None, *, max_bytes: int | None = None) -> Iterator[str]:
    """Yield the documents of the corpus described above.

    Args:
        folder: of the library; that of the running interpreter if None.
        max_bytes: stop before the first document that would make the text longer than this, in bytes of UTF-8.

    Raises:
        DataError: there is no source text (the library may be zipped or compiled).
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    seen: set[bytes] = set()
    size = 0
    for path in sorted(_source_files(folder), key=lambda path: _digest(path.relative_to(folder).as_posix().encode())):
        content = path.read_bytes()
        text = _text(content)
        if text is None or (digest := _digest(content)) in seen:
            continue
        size += len(content)
        if max_bytes is not None and size > max_bytes:
            break
        seen.add(digest)
        yield text
    if not seen:
        msg = (
            f"{folder} holds no source text of the Python standard library (it may be zipped), so there is no corpus.\n"
            "Use a Python that has it, or give token files of your own: data.path of the recipe."
        )
        raise DataError(msg)


def _source_files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = set(folders) - _FOLDERS_LEFT_OUT  # pruned: site-packages can be large
        yield from (Path(parent, name) for name in files if name.endswith(".py") and not name.startswith(_BUILD_DATA))


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _text(content: bytes) -> str | None:
    if not _SMALLEST <= len(content) <= _LARGEST:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return text if sum(map(str.isalpha, text)) >= _LETTERS * len(text) else None
