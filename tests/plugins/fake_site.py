"""Fake installed distributions: dist-info folders on sys.path, as pip makes them."""

from __future__ import annotations

import importlib
import sys
import textwrap
import tomllib
from typing import TYPE_CHECKING

import pytest

from pretrain.plugins.host import discovery

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMPORTS = """
import torch
from pretrain.plugins import hookimpl
from pretrain.plugins.backend import Available, Backend, Unavailable
from pretrain.plugins.offer import Decline, Offer
"""

DEVICE = """
class FakeBackend(Backend):
    name = "{name}"
    device_type = "cpu"
    process_group = "gloo"

    def availability(self):
        return {availability}

    def device(self, local_rank):
        return torch.device("cpu")


@hookimpl
def pretrain_backend():
    return FakeBackend()
"""

REFERENCE = """
@hookimpl
def pretrain_norm(request):
    return Offer(name="reference", build=lambda built: lambda x, weight, bias=None: "reference norm")
"""


class FakeSite:
    """A site-packages folder of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str, source: str) -> str:
        """Write a module that has the usual imports; return its name."""
        (self.folder / f"{name}.py").write_text(IMPORTS + textwrap.dedent(source))
        importlib.invalidate_caches()
        return name

    def install(self, distribution: str, version: str, group: str, **entries: str) -> None:
        """Install a distribution with entry points of one group: name=module."""
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        importlib.invalidate_caches()

    def project(self, source: Path) -> None:
        """Install a source tree as its pyproject.toml says."""
        project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
        for package in (source / "src").iterdir():
            (self.folder / package.name).symlink_to(package)
        for group, entries in project["entry-points"].items():
            self.install(project["name"], project["version"], group, **entries)

    def backend(self, name: str = "fake", source: str = "", *, availability: str = "Available('two of them')") -> None:
        """Install `pretrain-<name> 1.0`, a backend of this name, with further hooks."""
        device = DEVICE.format(name=name, availability=availability)
        self.module(f"{name}_backend", device + textwrap.dedent(source))
        self.install(f"pretrain-{name}", "1.0", "pretrain.backends", **{name: f"{name}_backend"})

    def plugin(self, name: str, source: str) -> None:
        """Install `kernels-<name> 2.0`, a plugin of the group `pretrain.plugins`."""
        self.install(f"kernels-{name}", "2.0", "pretrain.plugins", **{name: self.module(f"{name}_plugin", source)})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """An empty site-packages folder on sys.path; its modules are unloaded after the test."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield FakeSite(folder)
    ours = {path.stem for path in folder.iterdir()}
    for name in list(sys.modules):
        if name.partition(".")[0] in ours:
            del sys.modules[name]


@pytest.fixture
def reference(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> discovery.Installed:
    """A reference plugin that offers a norm and nothing else."""
    target = site.module("fake_reference", REFERENCE)
    fake = discovery.Installed(
        role=discovery.Role.REFERENCE, name="reference", target=target, distribution="pretrain", version="0"
    )
    monkeypatch.setattr(discovery, "REFERENCE", fake)
    return fake
