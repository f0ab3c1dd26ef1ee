"""Build the corpus of a recipe (`data.corpus`) without a network: text, tokenizer and token files.

The text is the Python standard library's source, a corpus that every machine with Python has. One file is one document,
as it is on disk. Left out are:

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

import fcntl
import hashlib
import json
import os
import sys
import sysconfig
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.atomic_files import replacing, try_to_write
from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.data.tokenizers.bpe import train_tokenizer
from pretrain.errors import DataError
from pretrain.machine import available_cores
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.documents import read_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.data import TokenizerSection


def prepare_corpus(recipe: Recipe, *, workers: int | None = None, log: Callable[[str], None] = click.echo) -> None:
    """Build the token files of `data.path`, and the tokenizer, if the recipe has `data.corpus` and they are absent.

    Three files are made, each complete or not at all: `<data.path>.jsonl`, one document a line; `tokenizer.file`,
    trained on it; `<data.path>.bin` and `.idx`. Of two processes one builds and the other waits; torch is not needed.
    """
    corpus, prefix, tokenizer = recipe.data.corpus, recipe.data.path, recipe.tokenizer
    if corpus is None or prefix is None or is_complete(prefix, tokenizer):
        return
    with _lock(Path(f"{prefix}.lock")):
        if not is_complete(prefix, tokenizer):
            text = Path(f"{prefix}.jsonl")
            _collect(text, corpus.max_bytes, log)
            _train(text, tokenizer, log)
            begin = time.monotonic()
            workers = workers or min(8, available_cores())
            built = build_tokens([text], Path(prefix), tokenizer, append_eod=True, workers=workers, force=True)
            found = f"token file: {built.documents:,} documents, {built.tokens:,} tokens"
            log(f"{found} -> {bin_path(prefix)} ({time.monotonic() - begin:.1f} s)")


def require_buildable(recipe: Recipe) -> None:
    """Check that the corpus of a recipe, which is absent, can be written, and write nothing."""
    path = Path(f"{recipe.data.path}.lock")
    try:
        try_to_write(path.parent)
    except OSError as error:
        raise _not_writable(path, error) from error


def is_complete(prefix: str, tokenizer: TokenizerSection) -> bool:
    """Return whether the token files and the tokenizer exist, so that nothing is left to build."""
    return _is_trained(tokenizer) and idx_path(prefix).is_file() and bin_path(prefix).is_file()


def _is_trained(tokenizer: TokenizerSection) -> bool:
    return tokenizer.type != "huggingface" or (tokenizer.file is not None and Path(tokenizer.file).is_file())


def _collect(output: Path, max_bytes: int | None, log: Callable[[str], None]) -> None:
    documents = size = 0
    begin = time.monotonic()
    with replacing(output) as stream:
        for text in stdlib_documents(max_bytes=max_bytes):
            stream.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")
            documents += 1
            size += len(text.encode())
    version = ".".join(map(str, sys.version_info[:3]))
    found = f"corpus: source text of the Python {version} standard library, {documents:,} documents"
    log(f"{found}, {size / 1e6:.1f} MB -> {output} ({time.monotonic() - begin:.1f} s)")


def _train(text: Path, tokenizer: TokenizerSection, log: Callable[[str], None]) -> None:
    if _is_trained(tokenizer):
        return
    if tokenizer.file is None or tokenizer.vocab_size is None:
        msg = "the tokenizer does not exist and cannot be trained.\nSet tokenizer.file and tokenizer.vocab_size."
        raise DataError(msg)
    begin = time.monotonic()
    size = train_tokenizer(read_texts([text], "text"), tokenizer.vocab_size, Path(tokenizer.file))
    log(f"tokenizer: byte-level BPE, {size:,} tokens -> {tokenizer.file} ({time.monotonic() - begin:.1f} s)")


def _not_writable(path: Path, error: OSError) -> DataError:
    reason = error.strerror or error
    return DataError(f"{path} cannot be written: {reason}.\nSet data.path to where the corpus can be written.")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("wb")
    except OSError as exc:
        raise _not_writable(path, exc) from exc
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


_FOLDERS_LEFT_OUT = {
    *("test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data", "encodings"),
    *("site-packages", "dist-packages", "__pycache__"),
}
_SMALLEST, _LARGEST, _LETTERS = 500, 300_000, 0.44


def stdlib_documents(folder: Path | None = None, *, max_bytes: int | None = None) -> Iterator[str]:
    """Yield the documents of the corpus described above."""
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
            f"{folder}, of which the corpus is made, has no source text of Python's standard library (is it zipped?).\n"
            "Use a Python that has it, or set data.path to token files of your own."
        )
        raise DataError(msg)


def _source_files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = set(folders) - _FOLDERS_LEFT_OUT  # pruned: site-packages can be large
        sources = (name for name in files if name.endswith(".py") and not name.startswith("_sysconfigdata"))
        yield from (Path(parent, name) for name in sources)


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
