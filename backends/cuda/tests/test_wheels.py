"""Bringing what a GPU machine without a network lacks. The download itself is seen by `make wheels`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path

import pytest

DEVICE = Path(__file__).parents[1] / "device"
spec = importlib.util.spec_from_file_location("wheels", DEVICE / "wheels.py")
wheels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wheels)


def test_everything_that_is_needed_is_asked_for():
    names = {wheels._name(requirement) for requirement in wheels.requirements()}
    assert names >= {"megatron-core", "deepspeed", "pydantic", "tokenizers", "pytest", "hatchling", "triton", "torch"}
    assert not names & {"pretrain", "pretrain-cuda", "ruff", "mypy"}


def test_what_is_there_is_an_empty_wheel_that_alone_fulfils_its_requirement(tmp_path):
    assert wheels.write_empty_wheel(tmp_path, "torch", "2.11.0+on.the.machine") == "torch==2.11.0+on.the.machine"
    (wheel,) = tmp_path.iterdir()
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    found, *_ = distributions(path=[str(tmp_path / "site")])  # once more by each finder of another importlib_metadata
    assert (found.name, found.version, found.requires) == ("torch", "2.11.0+on.the.machine", None)


@pytest.fixture
def copy(tmp_path):
    """The installer in a clone without wheels."""
    folder = tmp_path / "backends" / "cuda" / "device"
    shutil.copytree(DEVICE, folder)
    return folder


def install(copy, **environment):
    done = subprocess.run(
        [copy / "install"], env={**os.environ, **environment}, check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    return done.stderr.splitlines()


def test_without_wheels_the_installer_says_how_to_get_them(copy):
    assert install(copy) == [
        "There is no folder wheels/: nothing to install from.",
        "Call make wheels on a machine with a network, and copy the folder into this one.",
    ]


def test_without_torch_the_installer_asks_for_the_interpreter(copy):
    (copy.parents[2] / "wheels").mkdir()
    assert install(copy, PYTHON="false") == ["false has no torch: set PYTHON to the interpreter that has it."]
