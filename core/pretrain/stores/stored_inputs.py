"""Inputs of a command or a run that may lie in an object store; each is read from its copy on this node."""

from __future__ import annotations

import hashlib
import os
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from pretrain.errors import StoreError
from pretrain.stores.address import is_address
from pretrain.stores.local_copies import node_copy
from pretrain.stores.object_store import PATTERN, ObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.stores.object_store import StoredObject

_OPTIONAL = ".tokenizer.json"  # beside token files
_one_copy = Lock()  # threads may ask for the same address at once


def local_input(given: str) -> Path:
    """Return a path as it is, and for an address this node's copy: a file, or a folder of all that is below it.

    In the last part of an address `*`, `?` and `[...]` choose among the objects of its folder.
    """
    if not is_address(given):
        return Path(given)
    above, _, name = given.rpartition("/")
    beside = ObjectStore(above)
    if PATTERN & set(name):

        def chosen() -> list[StoredObject]:
            inside = [each for each in beside.objects() if "/" not in each.name]
            return some(given, [each for each in inside if fnmatchcase(each.name, name)])

        return node_copy(beside, chosen)
    if not above.endswith("/") and beside.named([name]):
        return node_copy(beside, lambda: beside.named([name])) / name
    store = ObjectStore(given)
    return node_copy(store, lambda: some(given, store.objects()))


def local_prefix(given: str) -> str:
    """Return the prefix of token files as it is, and for an address that of this node's copy of them."""
    if not is_address(given):
        return given

    def copied() -> Path:
        above, _, name = given.rpartition("/")
        store = ObjectStore(above)
        names = [f"{name}.bin", f"{name}.idx"]

        def choose() -> list[StoredObject]:
            found = store.named([*names, f"{name}{_OPTIONAL}"])
            missing = [each for each in names if each not in {one.name for one in found}]
            if missing:
                msg = (
                    f"token file {above}/{missing[0]} is missing.\n"
                    f"Build it, and copy both of its files and {name}{_OPTIONAL} there."
                )
                raise StoreError(msg)
            return found

        return node_copy(store, choose) / name

    return str(same_for_ranks(given, copied))


def same_for_ranks(address: str, copied: Callable[[], Path]) -> Path:
    """Return the copy that this process, or one that has started it, has chosen; else the one that `copied` makes.

    So all ranks of a node read the same objects, also when others are written there meanwhile.
    """
    variable = f"PRETRAIN_COPY_{hashlib.sha256(address.encode()).hexdigest()[:16]}"
    with _one_copy:
        found = os.environ.get(variable)
        if found is None or not Path(found).parent.is_dir():
            os.environ[variable] = found = str(copied())
    return Path(found)


def some(given: str, objects: list[StoredObject]) -> list[StoredObject]:
    """Return the objects of an address; StoreError: there are none."""
    if not objects:
        msg = f"{given} holds no object.\nCorrect the address; a list with commas must be of local files."
        raise StoreError(msg)
    return objects
