"""The wheels of `make build`, installed into an empty environment beside the libraries that are installed here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from structure.sources import ROOT, tracked

PACKAGES = {
    "pretrain": "core/pretrain",
    "pretrain_ascend": "backends/ascend/src/pretrain_ascend",
    "pretrain_cuda": "backends/cuda/src/pretrain_cuda",
}
"""Package -> its folder."""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheels")]  # one worker: they are made once


def call(*command, folder=ROOT):
    """Run a command that must succeed, without the checkout on Python's path, and return its output."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run([*map(str, command)], cwd=folder, env=kept, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheels, made by the command of `make build`."""
    folder = tmp_path_factory.mktemp("dist")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (words,) = re.findall(r"^\t\$\(PY\)/python (-m pip --quiet wheel .*)$", makefile, re.MULTILINE)
    call(sys.executable, *words.replace("--wheel-dir dist", f"--wheel-dir {folder}").split())
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheels, tmp_path_factory):
    """The folder of programs of a new environment: the wheels, then this environment's libraries."""
    folder = tmp_path_factory.mktemp("environment")
    call(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    site = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder).strip()
    # A path in a .pth file comes last, and the .pth files there, of the editable installations, are not read.
    libraries = sysconfig.get_path("purelib")
    (folder / "libraries.pth").write_text(f"{libraries}\n")
    (folder / "libraries.pth").rename(f"{site}/libraries.pth")
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", python]
    call(*pip, "install", "--no-index", "--no-deps", "--ignore-installed", *wheels)
    return python.parent


def test_there_is_one_for_each_distribution(wheels):
    assert [wheel.name.partition("-")[0] for wheel in wheels] == sorted(PACKAGES)


def test_they_have_every_file_of_their_packages(wheels):
    for wheel in wheels:
        package = wheel.name.partition("-")[0]
        source = PACKAGES[package]
        files = {str(path).replace(source, package, 1) for path in tracked() if str(path).startswith(f"{source}/")}
        assert {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} == files


@pytest.mark.full
def test_the_package_is_the_installed_one(environment, tmp_path):
    for package in PACKAGES:
        found = call(environment / "python", "-c", f"import {package}; print({package}.__file__)", folder=tmp_path)
        assert found.startswith(str(environment.parent))


@pytest.mark.full
def test_the_backends_are_found(environment, tmp_path):
    shown = call(environment / "pretrain", "backends", folder=tmp_path)
    rows = [line.split()[:3] for line in shown.splitlines()]
    for name, distribution in {"cpu": "pretrain", "cuda": "pretrain-cuda", "ascend": "pretrain-ascend"}.items():
        assert [name, distribution, "0.1.0"] in rows


@pytest.mark.full
def test_a_recipe_is_planned(environment, tmp_path):
    recipe = ROOT / "recipes" / "quickstart.yml"
    shown = call(environment / "pretrain", recipe, "--backend", "cpu", "--dry-run", folder=tmp_path)
    assert "num_layers: 4" in shown
