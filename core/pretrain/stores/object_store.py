"""Objects below one address, by fsspec; a call that fails in between is repeated for a minute."""

from __future__ import annotations

import errno
import sys
import time
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pretrain.errors import StoreError
from pretrain.stores.address import STORES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
WAITS = (1, 2, 4, 8, 16, 32)
"""Seconds before each repetition, in addition to those that fsspec's libraries make by themselves."""
_FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, ValueError, TypeError, ImportError)
_NO_LOGIN = ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError", "DefaultCredentialsError")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG}  # of this node's disk
PATTERN = frozenset("*?[")
"""Characters of patterns, in addresses and in what fsspec removes."""
_TAGS = ("ETag", "etag", "md5Hash", "generation", "created", "LastModified")
_LOGIN = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in as for the command aws; their permissions count.",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS, or call gcloud auth application-default login; its permissions count.",
}


class StoredObject(NamedTuple):
    """An object: its name below the store's address, size in bytes, and a tag that changes with its content."""

    name: str
    size: int
    tag: str


class ObjectStore:
    """The objects below an address; StoreError says in two lines what cannot be done."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._scheme, _, self._root = address.partition("://")

    def objects(self, under: str = "") -> list[StoredObject]:
        """Return the objects whose names begin with the folder `under`, sorted; StoreError: there is no such bucket."""
        folder = self._path(under) if under else self._root

        def find(files: Any) -> dict[str, Any]:
            found: dict[str, Any] = files.find(folder, detail=True)
            if not found and not files.exists(folder.partition("/")[0]):
                msg = "there is no such bucket"
                raise FileNotFoundError(msg)
            return found

        try:
            found = self._call("read", find)
        except FileNotFoundError as error:
            raise self._failure(error, "read") from error
        begin = len(self._root) + 1
        all_ = (StoredObject(path.lstrip("/")[begin:], int(info["size"]), _tag(info)) for path, info in found.items())
        # A name with a slash at its end is a folder, as the consoles of stores make it.
        return sorted(each for each in all_ if each.name and not each.name.endswith("/"))

    def named(self, names: list[str]) -> list[StoredObject]:
        """Return those of the named objects that exist."""
        found = []
        for name in names:
            try:
                info = self._call("read", partial(_info, self._path(name)))
            except FileNotFoundError:
                continue
            if info.get("type") == "file":
                found.append(StoredObject(name, int(info["size"]), _tag(info)))
        return found

    def read(self, name: str) -> bytes | None:
        """Return the content of an object; None: it does not exist."""
        try:
            content: bytes = self._call("read", lambda files: files.cat_file(self._path(name)))
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write an object, which appears whole or not at all."""
        self._changed(lambda files: files.pipe_file(self._path(name), content))

    def put(self, file: Path, name: str) -> None:
        """Write the content of a file, as `write`."""
        self._changed(lambda files: files.put_file(str(file), self._path(name)))

    def get(self, targets: dict[str, Path]) -> None:
        """Copy objects into files, several at once; a file that is there already is not complete and is replaced."""
        names = list(targets)
        paths, files_ = [self._path(name) for name in names], [str(targets[name]) for name in names]
        try:
            self._call("read", lambda files: files.get(paths, files_))
        except FileNotFoundError as error:
            raise self._failure(error, "read") from error

    def remove(self, names: list[str]) -> None:
        """Remove objects; those that are gone already are not missed. Of several, s3fs tells no error."""
        paths = [self._path(name) for name in names]

        def remove(files: Any) -> None:
            if len(paths) > 1 and not PATTERN & set("".join(paths)):
                with suppress(FileNotFoundError):
                    files.rm(paths)  # many in a request
                    return
            for path in paths:
                with suppress(FileNotFoundError):
                    files.rm_file(path)

        self._changed(remove)

    def require_writable(self) -> None:
        """Write a small object and remove it, so that a mistake is found before the training."""
        probe = f".pretrain-probe-{uuid.uuid4().hex}"
        self.write(probe, b"pretrain\n")
        self.remove([probe])

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _changed(self, call: Callable[[Any], T]) -> T:
        try:
            return self._call("written", call)
        except FileNotFoundError as error:  # of a bucket: an object need not exist
            raise self._failure(error, "written") from error

    def _call(self, verb: str, call: Callable[[Any], T]) -> T:
        for number, wait in enumerate((*WAITS, None)):
            try:
                return call(self._files())
            except FileNotFoundError:
                raise
            except Exception as error:
                if wait is None or _is_final(error):
                    raise self._failure(error, verb) from error
                if not number:
                    told = str(self._failure(error, verb)).partition("\n")[0]
                    sys.stderr.write(f"{told} It is tried again for {sum(WAITS)} s.\n")
                time.sleep(wait)
        raise AssertionError

    def _files(self) -> Any:
        import fsspec  # noqa: PLC0415  torch has it, and --help needs it not

        # A listing that is kept would not show what another rank has written.
        return fsspec.filesystem(self._scheme, use_listings_cache=False)

    def _failure(self, error: Exception, verb: str) -> StoreError:
        names = {type(each).__name__ for each in (error, error.__cause__, error.__context__)}
        if isinstance(error, ImportError):
            reason = f"{STORES.get(self._scheme)} is not installed"
            todo = f"Install it: pip install 'pretrain[{self._scheme}]'"
        elif isinstance(error, FileNotFoundError):
            reason, todo = str(error), "Make the bucket, or correct the address."
        elif isinstance(error, PermissionError) or names & set(_NO_LOGIN):
            reason, todo = str(error), _LOGIN.get(self._scheme, "")
        elif isinstance(error, OSError) and error.errno in _FULL:
            reason, todo = str(error), "Free disk space, or name another folder for copies: PRETRAIN_CACHE."
        else:
            reason = str(error) or type(error).__name__
            endpoint = " and at AWS_ENDPOINT_URL" * (self._scheme == "s3")
            todo = f"Look at the network{endpoint}; then start again. What was complete there is kept."
        first = reason.strip().splitlines()[0][:200].rstrip(".")
        return StoreError(f"{self.address} cannot be {verb}: {first}.\n{todo}")


def _is_final(error: Exception) -> bool:
    """Say whether a repetition would fail as well."""
    code = getattr(error, "code", None)  # of gcsfs: a status of HTTP
    refused = isinstance(code, int) and 400 <= code < 500 and code not in {408, 429}
    full = isinstance(error, OSError) and error.errno in _FULL
    return isinstance(error, _FINAL) or type(error).__name__ in _NO_LOGIN or refused or full


def _info(path: str, files: Any) -> dict[str, Any]:
    found: dict[str, Any] = files.info(path)
    return found


def _tag(info: dict[str, Any]) -> str:
    return next((str(info[key]) for key in _TAGS if info.get(key) is not None), "")
