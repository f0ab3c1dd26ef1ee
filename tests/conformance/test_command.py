"""pretrain conformance."""

from __future__ import annotations

import os
import re

import pytest
from click.testing import CliRunner

from pretrain.cli.conformance import command
from pretrain.conformance import suite
from pretrain.conformance.cases import TIERS
from pretrain.errors import BackendError


@pytest.fixture(autouse=True)
def quick_end(monkeypatch):
    """At its end a pytest that is called in this process would collect the garbage of all of it five times."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:unraisableexception")


def invoke(*arguments):
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_a_backend_that_passes_exits_with_zero():
    result = invoke("--backend", "cpu", "-k", "(TestRotary and d16) or TestMemory", "-v")
    assert result.exit_code == 0
    assert (
        "TestRotary::test_agrees_with_float64[reference-reference-n4-d16-rotary_size 16-s1-fp32] PASSED"
        in result.output
    )


@pytest.mark.full
def test_a_backend_that_fails_does_not():
    result = invoke("--backend", "conformance.mutants:WRONG", "-k", "TestRotary and d16")
    assert result.exit_code == 1
    assert "FAILED" in result.output


@pytest.mark.full
def test_a_tier_that_fails_is_the_last_and_all_tiers_are_listed():
    result = invoke("--backend", "conformance.mutants:WRONG", "-k", "TestMemory or (TestRotary and d16)")
    assert result.exit_code == 1
    tiers = result.output.partition("= tiers =")[2].splitlines()
    assert re.fullmatch(r"device: \d failed, \d passed in \d+ s", tiers[1])
    assert tiers[2] == "kernels: not run"
    assert "tier device failed; the tiers after it were not run" in result.output


@pytest.mark.full
def test_one_tier_is_run_alone():
    result = invoke(
        "--backend", "conformance.mutants:WRONG", "-k", "TestMemory or (TestRotary and d16)", "--tier", "kernels"
    )
    assert "TestRotary" in result.output
    assert "TestMemory" not in result.output


def test_every_class_of_the_kit_is_of_one_tier():
    tiers = {name: getattr(suite, name).tier for name in suite.__all__ if hasattr(getattr(suite, name), "tier")}
    assert tiers == {
        **dict.fromkeys(("TestCollectives", "TestDeviceModule", "TestMemory"), "device"),
        "TestTraining": "training",
    }
    assert set(tiers.values()) | {"kernels"} == set(TIERS)


@pytest.mark.full
def test_declined_requests_are_listed_with_the_reason():
    result = invoke("--backend", "cpu", "-k", "TestMemory")
    assert result.exit_code == 0
    listed = result.output.partition("norm cpu-torch (pretrain ")[2].splitlines()[:2]
    ((half, asked),) = re.findall(r"\): takes (\d+) of (\d+) requests$", listed[0])
    assert int(asked) == 2 * int(half)  # each norm is asked for in both kinds
    assert listed[1] == f"    declines {half}: kind RMSNorm; only LayerNorm"


def test_an_unknown_backend_is_an_error_before_any_test():
    with pytest.raises(BackendError, match="'cup' is not installed"):
        invoke("--backend", "cup")


@pytest.mark.full
def test_a_test_file_that_names_no_backend_is_an_error(tmp_path, capsys):
    (tmp_path / "test_nameless.py").write_text("from pretrain.conformance.suite import *\n")
    code = pytest.main(["-q", "-c", os.devnull, "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)])
    assert code == pytest.ExitCode.INTERRUPTED
    assert 'names no backend: BACKEND = "cuda"' in capsys.readouterr().out
