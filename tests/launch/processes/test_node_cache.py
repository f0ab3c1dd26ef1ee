"""A process of an environment on shared storage goes on in a copy on the node's own disk."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pretrain.launch.processes.node_cache import FOLDER

CORE = str(Path(__file__).parents[3] / "core")
PROGRAM = """
import os, sys
from pretrain.launch.processes.node_cache import use_node_cache
use_node_cache()
import installed
print(os.getpid(), sys.prefix, installed.__file__, sys.argv[1:])
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment with one package, the project in editable mode, and what these tests' one has."""
    folder = tmp_path_factory.mktemp("shared") / "environment"
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "installed").mkdir()
    (packages / "installed" / "__init__.py").write_text("")
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "others.pth").write_text("\n".join([CORE, *others]))
    return folder


def told(environment, cache):
    """Return process id, prefix, file of the package and arguments that a process sees, what it writes to stderr, and
    its first process id."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables = kept | {FOLDER: str(cache), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [environment / "bin" / "python", "-c", PROGRAM, "an argument"]
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    number, prefix, file, arguments = output.strip().split(maxsplit=3)
    return int(number) == process.pid, Path(prefix), Path(file), arguments, errors


def test_a_process_goes_on_in_the_copy_that_the_first_one_has_made(environment, tmp_path):
    is_same, prefix, file, arguments, errors = told(environment, tmp_path)
    assert (is_same, prefix.parent.parent, arguments) == (True, tmp_path, "['an argument']")
    assert file.is_relative_to(prefix)
    assert "Copied in" in errors
    assert told(environment, tmp_path) == (is_same, prefix, file, arguments, "")


@pytest.mark.full
def test_after_an_installation_there_is_another_copy(environment, tmp_path):
    before = told(environment, tmp_path)[1]
    (next(environment.glob("lib/python*/site-packages")) / "another").mkdir()
    assert told(environment, tmp_path)[1].parent == before.parent
    assert told(environment, tmp_path)[1] != before


@pytest.mark.full
def test_a_copy_that_was_not_finished_is_made_again(environment, tmp_path):
    prefix = told(environment, tmp_path)[1]
    prefix.rename(prefix.with_suffix(".partial"))
    (prefix.with_suffix(".partial") / "lib").rename(tmp_path / "lost")
    assert told(environment, tmp_path)[2].exists()


def test_a_folder_that_others_can_write_is_not_used(environment, tmp_path):
    told(environment, tmp_path)[1].parent.chmod(0o777)
    _, prefix, _, _, errors = told(environment, tmp_path)
    assert prefix == environment
    assert "can be written by others" in errors


def test_an_environment_whose_libraries_do_not_load_from_the_copy_is_used_itself(environment, tmp_path):
    broken = next(environment.glob("lib/python*/site-packages")) / "torch.py"
    broken.write_text("raise ImportError('no such library')")
    try:
        _, prefix, _, _, errors = told(environment, tmp_path)
    finally:
        broken.unlink()
    assert prefix == environment
    assert "`import torch` fails there: ImportError: no such library" in errors
    assert list(tmp_path.glob("*/*.partial")) == []


def test_where_no_copy_can_be_made_the_environment_itself_is_used(environment, tmp_path):
    (tmp_path / "file").write_text("")
    _, prefix, _, _, errors = told(environment, tmp_path / "file")
    assert prefix == environment
    assert errors.startswith(f"warning: {FOLDER}={tmp_path / 'file'}: the Python environment cannot be copied there: ")
