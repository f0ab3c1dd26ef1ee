"""Object stores in this process's memory, by fsspec's own file system."""

import fsspec
import pytest

from pretrain.stores import object_store
from pretrain.stores.address import STORES


@pytest.fixture(autouse=True)
def memory(monkeypatch, tmp_path):
    """Make memory:// a store; return fsspec's file system, which holds the bucket `b` and nothing else."""
    monkeypatch.setitem(STORES, "memory", "fsspec")
    monkeypatch.setenv("PRETRAIN_CACHE", str(tmp_path / "node"))
    monkeypatch.setattr(object_store, "WAITS", (0, 0))
    files = fsspec.filesystem("memory", use_listings_cache=False)
    files.store.clear()
    files.pseudo_dirs[:] = ["", "/b"]
    return files
