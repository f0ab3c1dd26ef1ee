"""Versions that belong together: the table is pyproject.toml's, and every installed version is held against it."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from pretrain.plugins.host import manager
from pretrain.tools.doctor import host
from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.host import DEEPSPEED, PYTHON, REQUIRED, examine_versions

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
TORCH, NUMPY = (importlib.metadata.version(name) for name in ("torch", "numpy"))
METADATA = "pretrain_fake-1.0.dist-info/METADATA"


def of_project(lines):
    return {each.name: each.specifier for each in map(Requirement, lines)}


def specifiers(table):
    return {name: SpecifierSet(allowed) for name, allowed in table.items()}


def findings(backend="cpu", *, uses_deepspeed=False):
    return list(examine_versions(manager.load(backend), uses_deepspeed=uses_deepspeed))


@pytest.fixture
def installed(monkeypatch):
    """Pretend that distributions have other versions, or None: are not installed."""

    def pretend(**others):
        true = importlib.metadata.version

        def version(name):
            given = others.get(name.replace("-", "_"), true)
            if given is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return given if isinstance(given, str) else true(name)

        monkeypatch.setattr(importlib.metadata, "version", version)

    return pretend


def test_the_table_is_that_of_pyproject():
    assert specifiers(REQUIRED) == of_project(PROJECT["dependencies"])
    assert specifiers(DEEPSPEED) == of_project(PROJECT["optional-dependencies"]["deepspeed"])
    assert SpecifierSet(PYTHON) == SpecifierSet(PROJECT["requires-python"])


def test_what_is_installed_here_belongs_together():
    (finding,) = findings(uses_deepspeed=True)
    assert (finding.check, finding.verdict) == ("versions", Verdict.OK)
    assert f"torch {TORCH}, megatron-core 0.16.1, deepspeed 0.19" in finding.text


def test_a_version_that_is_not_allowed_is_wrong(installed):
    installed(megatron_core="0.15.0", torch="2.8.0+cu128")
    assert [(f.verdict, f.text, f.remedy) for f in findings()] == [
        (
            Verdict.WRONG,
            "megatron-core 0.15.0 is installed; pretrain needs megatron-core ==0.16.1",
            "pip install 'megatron-core==0.16.1'",
        ),
        (
            Verdict.WRONG,
            "torch 2.8.0+cu128 is installed; pretrain needs torch <2.16,>=2.9",
            "pip install 'torch<2.16,>=2.9'",
        ),
    ]


def test_deepspeed_matters_only_to_recipes_of_its_engine(installed):
    installed(deepspeed=None)
    assert [f.verdict for f in findings()] == [Verdict.OK]
    (finding,) = findings(uses_deepspeed=True)
    assert finding.text == "deepspeed is not installed; pretrain needs deepspeed <0.20,>=0.19.8"


def test_an_older_python_is_wrong(monkeypatch):
    monkeypatch.setattr(host.platform, "python_version", lambda: "3.10.4")
    (finding,) = findings()
    assert finding.text == "Python 3.10.4; pretrain is tested with >=3.11,<3.14"


@pytest.fixture
def of_fake(site):
    """Return the findings that are not ok, of a backend whose distribution has these lines in its metadata."""

    def find(*lines):
        site.backend("fake")
        with (site.folder / METADATA).open("a") as metadata:
            metadata.writelines(f"{line}\n" for line in lines)
        return [(f.verdict, f.text) for f in findings("fake") if f.verdict is not Verdict.OK]

    return find


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("torch<2", f"torch {TORCH} is installed; pretrain-fake needs torch <2"),
        ("vendor-kit>=3", "vendor-kit is not installed; pretrain-fake needs vendor-kit >=3"),
        ("torch<2; sys_platform == 'win32'", None),
    ],
)
def test_the_requirements_of_a_backends_distribution(of_fake, line, text):
    assert of_fake(f"Requires-Dist: {line}") == ([] if text is None else [(Verdict.WRONG, text)])


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        ("numpy>99; extra == 'fast'", True),
        ("numpy>99; extra == 'fast' and python_version > '3'", True),
        ("numpy>99; extra == 'fast' and sys_platform == 'win32'", False),
        ("numpy>1; extra == 'fast'", False),
        ("vendor-kit>=3; extra == 'fast'", False),
    ],
)
def test_an_extra_that_nobody_may_have_asked_for_is_only_looked_at(of_fake, line, is_shown):
    text = f"numpy {NUMPY} is installed; pretrain-fake[fast] needs numpy >99"
    found = of_fake("Provides-Extra: slow", "Provides-Extra: fast", f"Requires-Dist: {line}")
    assert found == ([(Verdict.LOOK, text)] if is_shown else [])
