"""Libraries and files of a plugin are found without importing them, and imported when they are needed."""

import importlib.metadata
import sys

import pytest
import torch

from pretrain.plugins import installed
from pretrain.plugins.requests import RotaryRequest

REQUEST = RotaryRequest(device_type="cpu", dtype=torch.float32, heads=1, head_size=2, rotary_size=2, seq_length=1)


@pytest.fixture
def vendor(tmp_path, monkeypatch):
    """A package `acmelib` whose import fails, with the module acmelib.kernels, beside a backend `acme_files`."""
    (tmp_path / "acmelib").mkdir()
    (tmp_path / "acmelib/__init__.py").write_text("raise OSError('libacme.so:\\n  cannot open shared object file')")
    (tmp_path / "acmelib/kernels.py").write_text("raise AssertionError('nobody imports it')")
    (tmp_path / "acme_files").mkdir()
    (tmp_path / "acme_files/__init__.py").write_text("")
    (tmp_path / "acme_files/rotary.py").write_text("def answers(request): return ['answer to', request]")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in {"acmelib", "acme_files"}]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("module", "there"),
    [
        ("acmelib", True),
        ("acmelib.kernels", True),
        ("acmelib.others", False),
        ("acmelib.kernels.deeper", False),  # a module, not a package
        ("acmelib_of_nobody", False),
        ("acmelib_of_nobody.kernels", False),
        ("json.decoder", True),
    ],
)
def test_a_module_is_found_without_importing_it_or_its_package(vendor, module, there):
    assert installed.has(module) is there
    assert "acmelib" not in sys.modules


def test_a_module_that_was_put_in_place_without_a_spec_counts_as_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "acmelib", type(sys)("acmelib"))
    assert not installed.has("acmelib")


def test_version_and_provider_are_what_pip_knows():
    version = importlib.metadata.version("pluggy")
    assert (installed.version("pluggy"), installed.provider("pluggy")) == (version, f"pluggy {version}")


def test_a_library_that_pip_does_not_know_has_its_bare_name_as_provider():
    assert (installed.version("acmelib"), installed.provider("acmelib")) == ("", "acmelib")


def test_a_failed_import_is_one_line(vendor):
    assert installed.import_failure("acmelib") == "OSError: libacme.so: cannot open shared object file"
    assert installed.import_failure("acme_files") == ""


def test_a_long_cause_is_cut(vendor):
    (vendor / "acmelib/__init__.py").write_text("raise OSError('x' * 5000)")
    assert len(installed.import_failure("acmelib")) == 300


def test_the_file_of_an_operation_answers(vendor):
    assert installed.answers("acme_files", REQUEST) == ["answer to", REQUEST]
