"""Table of offers: a kernel that begins to decline is noticed. And a module without a device is skipped once."""

from __future__ import annotations

import os

import pytest
import torch

from conformance.choosy import CHOOSY


@pytest.fixture
def run(tmp_path, capsys):
    """Run a test file of a backend's author with pytest; return the exit code and the output."""

    def run(backend, line):
        file = tmp_path / f"test_{backend.lower()}.py"
        file.write_text(f'{line}\n\nBACKEND = "conformance.choosy:{backend}"\n')
        options = ["-q", "-rs", "-c", os.devnull, "-p", "no:cacheprovider", "--import-mode=importlib"]
        options += ["-p", "no:unraisableexception"]  # it collects the garbage of this whole process five times
        code = pytest.main([*options, "--rootdir", str(tmp_path), str(file)])
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def compare(run, tmp_path, monkeypatch):
    """Write the table with a kernel that takes everything, and compare it with one that declines."""

    def compare(declines):
        line = "from pretrain.conformance.offers import TestOffers"
        monkeypatch.setenv("PRETRAIN_WRITE_OFFERS", "1")
        assert run("CHOOSY", line)[0] == 0
        assert (
            "  choosy-picky:\n    takes: {fp32: 62 of 62, bf16: 76 of 76, fp16: 76 of 76}\n"
            in (tmp_path / "test_choosy.yml").read_text()
        )
        monkeypatch.delenv("PRETRAIN_WRITE_OFFERS")
        monkeypatch.setattr(CHOOSY, "declines", declines)
        return run("CHOOSY", line)

    return compare


def test_the_same_offers_pass(compare):
    assert compare(lambda request: "")[0] == pytest.ExitCode.OK


def no_bf16(request):
    return "dtype bfloat16; only float32, float16" if request.dtype is torch.bfloat16 else ""


def no_long_rows_in_fp16(request):
    return "12288 in fp16" if (request.hidden_size, request.dtype) == (12288, torch.float16) else ""


def not_deterministic(request):
    return "deterministic; only not" if request.deterministic else ""


MUTANTS = {
    no_bf16: ["+   takes: {fp32: 62 of 62, bf16: 0 of 76, fp16: 76 of 76}", "declines 76: dtype bfloat16; only"],
    no_long_rows_in_fp16: ["+   takes: {fp32: 62 of 62, bf16: 76 of 76, fp16: 66 of 76}", "declines 10: 12288 in fp16"],
    not_deterministic: ["+     deterministic: [true]", "declines 42: deterministic; only not"],
    lambda request: None: ["- choosy-picky:"],
}


@pytest.mark.parametrize(
    ("mutant", "told"), MUTANTS.items(), ids=["bf16", "one size in one dtype", "deterministic", "everything"]
)
def test_a_kernel_that_begins_to_decline_is_caught(compare, mutant, told):
    code, shown = compare(mutant)
    assert code == pytest.ExitCode.TESTS_FAILED
    for words in ["Kernels take other requests than test_choosy.yml says.\nnorm:\n", *told]:
        assert words in shown
    assert "PRETRAIN_WRITE_OFFERS=1 python -m pytest 'test_choosy.py::TestOffers::test_are_those_of_the_table'" in shown


def test_a_table_that_is_missing_fails(run):
    code, shown = run("CHOOSY", "from pretrain.conformance.offers import TestOffers")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "test_choosy.yml does not exist" in shown


def test_the_kit_without_a_device_is_skipped_once_with_the_reason(run):
    code, shown = run("ABSENT", "from pretrain.conformance.suite import *")
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED, shown
    assert "no choosy device is plugged in" in shown
    assert shown.splitlines()[-1].startswith("1 skipped in")
