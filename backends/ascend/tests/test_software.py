"""CANN and torch_npu: the versions that Huawei pairs, and the version of the installed CANN."""

from __future__ import annotations

import pytest

from pretrain_ascend import software


@pytest.mark.parametrize(
    ("cann", "torch_npu", "expected"),
    [
        ("8.5.0", "2.9.0", ""),
        ("9.1.0", "2.12.0", ""),
        ("8.3.RC1", "2.8.0", ""),
        ("", "2.13.0", ""),
        ("8.5.0", "2.12.0", "Huawei pairs torch_npu 2.12.0 with CANN 9.1, not 8.5.0"),
        ("8.0.RC3", "2.9.0", "Huawei pairs torch_npu 2.9.0 with CANN 8.5, not 8.0.RC3"),
        (
            "8.5.0",
            "2.13.0",
            "Huawei pairs CANN 8.5.0 with torch_npu 2.6.0.post5, 2.7.1.post2, 2.8.0.post2, 2.9.0, not 2.13.0",
        ),
        ("10.0.0", "2.13.0", "Huawei's table has neither CANN 10.0.0 nor torch_npu 2.13.0"),
    ],
)
def test_a_pair_is_looked_up_in_huaweis_table(cann, torch_npu, expected):
    assert software.unpaired(cann, torch_npu) == expected


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "aarch64-linux/ascend_toolkit_install.info",
            "package_name=Ascend-cann-toolkit\nversion=8.5.0\narch=aarch64\n",
        ),
        ("version.info", "Version=8.5.0\n"),
        ("compiler/version.info", "Version=8.5.0\ntimestamp=2025\n"),
    ],
)
def test_where_torch_npu_does_not_answer_the_installers_files_do(monkeypatch, tmp_path, file, text):
    monkeypatch.setattr(software, "import_module", lambda name: {}[name])
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path))
    assert software.cann() == "8.5.0"


def test_without_either_the_version_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(software, "import_module", lambda name: {}[name])
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path))
    assert software.cann() == ""
