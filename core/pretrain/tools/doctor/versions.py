"""Checks the versions of distributions, and the vendor's software by its backend."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from pretrain.plugins.backend import Remark
from pretrain.plugins.host.members import ask
from pretrain.tools.doctor.finding import Finding, Verdict, is_ok

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pretrain.plugins.host.manager import Plugins

PYTHON = ">=3.11,<3.14"
REQUIRED: Mapping[str, str] = {
    "click": ">=8.1.8",
    "gigatoken": ">=0.10,<0.11",
    "megatron-core": "==0.16.1",
    "numpy": ">=1.26",
    "orjson": ">=3.10",
    "packaging": ">=24.2",
    "pluggy": ">=1.6",
    "pydantic": ">=2.11",
    "pyyaml": ">=6.0.2",
    "rich": ">=14.0",
    "safetensors": ">=0.5",
    "tensorboard": ">=2.19",
    "tokenizers": ">=0.21",
    "torch": ">=2.9,<2.16",
    "xxhash": ">=3.5",
    "zstandard": ">=0.23",
}
"""Distribution -> versions that pretrain is tested with: the dependencies of pyproject.toml, which a test compares.
What pip recorded is not asked: a checkout may be newer than its installation."""
DEEPSPEED: Mapping[str, str] = {"deepspeed": ">=0.19.8,<0.20"}
"""The same of the extra `pretrain[deepspeed]`, for recipes of its engine."""
SHOWN = ("torch", "megatron-core", "deepspeed", "numpy")  # also where they are right


def examine_versions(plugins: Plugins, *, uses_deepspeed: bool) -> Iterator[Finding]:
    """Yield what does not belong together, or one finding where all does; then the remarks of the backend."""
    needed = {**REQUIRED, **(DEEPSPEED if uses_deepspeed else {})}
    own = (_judged(Requirement(f"{name}{allowed}"), "pretrain") for name, allowed in needed.items())
    bad = [finding for finding in (_python(), *own, *_of_plugins(plugins)) if finding is not None]
    if is_ok(bad):
        shown = [f"{name} {installed(name)}" for name in SHOWN if name in needed]
        yield Finding.ok("versions", ", ".join([f"Python {platform.python_version()}", *shown]))
    yield from bad
    remarks: Sequence[Remark] = ask(
        plugins,
        "health",
        "a sequence of Remark",
        lambda given: isinstance(given, Sequence) and all(isinstance(remark, Remark) for remark in given),
    )
    for remark in remarks:
        yield Finding(check=remark.subject, verdict=Verdict(remark.verdict), text=remark.text, remedy=remark.remedy)


def installed(name: str) -> str | None:
    """Return the version of a distribution that pip knows, None without one."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Finding | None:
    version = platform.python_version()
    if SpecifierSet(PYTHON).contains(version, prereleases=True):
        return None
    remedy = "Make an environment with one of these and install pretrain in it."
    return Finding.wrong("versions", f"Python {version}; pretrain is tested with {PYTHON}", remedy)


def _judged(requirement: Requirement, by: str, make: Callable[..., Finding] = Finding.wrong) -> Finding | None:
    version, name = installed(requirement.name), requirement.name
    if version is not None and requirement.specifier.contains(version, prereleases=True):
        return None
    given = f"{name} is not installed" if version is None else f"{name} {version} is installed"
    needed = f"{name} {requirement.specifier}".rstrip()
    return make("versions", f"{given}; {by} needs {needed}", f"pip install '{name}{requirement.specifier}'")


def _of_plugins(plugins: Plugins) -> Iterator[Finding | None]:
    for distribution in dict.fromkeys(plugin.installed.distribution for plugin in plugins.members):
        if distribution not in {"", "pretrain"} and installed(distribution) is not None:
            for line in importlib.metadata.requires(distribution) or []:
                with suppress(InvalidRequirement):
                    yield _of_plugin(Requirement(line), distribution)


def _of_plugin(requirement: Requirement, distribution: str) -> Finding | None:
    """Judge a requirement; one of an extra only where its distribution is installed, maybe for something else."""
    marker = requirement.marker
    if marker is None or marker.evaluate({"extra": ""}):
        return _judged(requirement, distribution)
    extras = importlib.metadata.metadata(distribution).get_all("Provides-Extra") or []
    extra = next((name for name in extras if marker.evaluate({"extra": name})), None)
    if extra is None or installed(requirement.name) is None:
        return None
    return _judged(requirement, f"{distribution}[{extra}]", Finding.look)
