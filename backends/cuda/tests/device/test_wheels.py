"""Wheels for a GPU machine without a network. The download itself is tested by `make wheels`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path

import pytest

DEVICE = Path(__file__).parents[2] / "device"
spec = importlib.util.spec_from_file_location("wheels", DEVICE / "wheels.py")
wheels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wheels)


def test_all_needed_wheels_are_requested():
    names = {wheels._name(requirement) for requirement in wheels.requirements()}
    assert names >= {"megatron-core", "deepspeed", "pydantic", "tokenizers", "pytest", "hatchling", "triton", "torch"}
    assert not names & {"pretrain", "pretrain-cuda", "ruff", "mypy"}


def test_what_is_there_is_an_empty_wheel_that_alone_fulfils_its_requirement(tmp_path):
    assert wheels.write_empty_wheel(tmp_path, "torch", "2.11.0+on.the.machine") == "torch==2.11.0+on.the.machine"
    (wheel,) = tmp_path.iterdir()
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    found, *_ = distributions(path=[str(tmp_path / "site")])  # once more by each finder of another importlib_metadata
    assert (found.name, found.version, found.requires) == ("torch", "2.11.0+on.the.machine", None)


def test_what_is_there_can_be_named_and_taken_off():
    assert wheels.versions_there([]) == wheels.THERE
    assert wheels.versions_there(["torch==2.13.0", "numpy=="]) == {"torch": "2.13.0", "triton": "3.6.0"}


def test_a_folder_within_the_size_limit_is_accepted(tmp_path):
    (tmp_path / "one-1.0-py3-none-any.whl").write_bytes(bytes(3 * 2**20))
    assert wheels.weigh(tmp_path) == f"{tmp_path}: 1 wheels, 3.0 MiB"


def test_a_folder_over_the_size_limit_is_an_error_with_its_largest_files(tmp_path):
    for name, size in (("small", 3), ("large", 40), ("middle", 20)):
        with (tmp_path / f"{name}-1.0-py3-none-any.whl").open("wb") as wheel:
            wheel.truncate(size * 2**20)
    with pytest.raises(SystemExit) as ended:
        wheels.weigh(tmp_path)
    first, second = str(ended.value.code).splitlines()
    assert first.endswith("63.0 MiB; at most 60 can be carried. Largest: large 40.0, middle 20.0, small 3.0.")
    assert "THERE" in second


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
