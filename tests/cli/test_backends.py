"""`pretrain backends`: everything that is installed, usable or not."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from plugins.fake_site import reference, site
from pretrain.cli.backends import command
from pretrain.plugins.host import discovery

__all__ = ["reference", "site"]


def listing() -> str:
    result = CliRunner().invoke(command)
    assert result.exit_code == 0, result.output
    # Cells are wrapped; what they say is not.
    return " ".join(result.output.split())


def test_an_available_backend_shows_provider_and_detail(site):
    site.backend("fake")
    assert "fake pretrain-fake 1.0 available: two of them" in listing()


def test_a_backend_without_device_shows_reason_and_remedy(site):
    site.backend("fake", availability="Unavailable('no driver found', 'install the driver')")
    assert "fake pretrain-fake 1.0 not available: no driver found install the driver" in listing()


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import vendor_library", "failed to import: ModuleNotFoundError: No module named 'vendor_library'"),
        ("raise SystemExit(1)", "failed to import: SystemExit"),
        ("@hookimpl\ndef pretrain_nrom(request):\n    pass\n", "implements 'pretrain_nrom', which is not a hook."),
    ],
)
def test_a_broken_backend_is_a_line_and_the_others_are_still_listed(site, source, what):
    site.backend("broken", source)
    site.backend("fake")
    text = listing()
    assert f"broken pretrain-broken 1.0 {what}" in text
    assert "fake pretrain-fake 1.0 available" in text


def test_a_name_claimed_twice_is_one_line_with_both_providers(site):
    site.install("one", "1.0", "pretrain.backends", twin="one_backend")
    site.install("other", "2.0", "pretrain.backends", twin="other_backend")
    text = listing()
    assert text.count("twin") == 2
    assert "registered by one 1.0 and other 2.0" in text


def test_first_party_backends_that_are_missing_say_how_to_get_them(monkeypatch):
    monkeypatch.setattr(discovery, "installed_backends", list)
    text = listing()
    for name in ("ascend", "cuda"):
        assert f"{name} - not installed: pip install ./backends/{name} (in a checkout)" in text
        assert f"or: pip install pretrain_{name}-*.whl (with a wheel of `make build`)" in text


def test_an_installed_first_party_backend_is_not_listed_as_missing(site):
    site.install("pretrain-ascend", "0.1.0", "pretrain.backends", ascend="no_such_package.plugin")
    text = listing()
    assert "ascend pretrain-ascend 0.1.0 failed to import" in text
    assert "pip install pretrain_ascend" not in text


def test_kernel_plugins_are_listed_with_their_operations(site):
    site.plugin("good", "@hookimpl\ndef pretrain_norm():\n    pass\n\n@hookimpl\ndef pretrain_linear():\n    pass\n")
    site.plugin("sad", "1 / 0")
    text = listing()
    assert "good kernels-good 2.0 linear, norm" in text
    assert "sad kernels-sad 2.0 failed to import: ZeroDivisionError: division by zero" in text


def test_a_misspelt_entry_point_group_is_reported(site):
    site.install("kernels-lost", "1.0", "pretrain.plugin", lost="lost_plugin")
    output = " ".join(CliRunner().invoke(command).output.split())
    assert (
        "kernels-lost 1.0 registers 'lost' in the entry-point group 'pretrain.plugin', which pretrain does not"
        in output
    )


def test_lines_fit_into_a_hundred_columns(site):
    site.backend("fake", availability="Unavailable('many words ' * 30, 'a remedy')")
    output = CliRunner().invoke(command).output
    assert max(len(line) for line in output.splitlines()) <= 100


def test_the_list_of_an_empty_installation_needs_no_torch():
    check = (
        "import sys\nfrom pretrain.cli.backends import command\nfrom pretrain.plugins.host import discovery\n"
        "discovery.installed_backends = list\n"
        "command([], standalone_mode=False)\nassert 'torch' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", check], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
