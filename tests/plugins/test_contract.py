"""Plugins of another version of the contract: refused, or declined for, with the versions in the message."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from plugins.negotiation.test_choosing import NORM
from pretrain.cli.main import main
from pretrain.errors import BackendError
from pretrain.plugins import CONTRACT, hookspec, hookspecs, requests
from pretrain.plugins.contract import leaving, removal_of
from pretrain.plugins.host import manager
from pretrain.plugins.negotiation.choosing import ask
from pretrain.plugins.offer import Offer
from pretrain.plugins.requests import Request

pytestmark = pytest.mark.usefixtures("reference")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaterNorm(Request):
    """A request that has gained a field in contract 1.1."""

    operation: ClassVar[str] = "norm"
    zero_centered: bool = field(default=False, metadata={"since": (1, 1)})


def later(**values):
    return LaterNorm(device_type="cpu", dtype=torch.float32, **values)


def norm(contract=""):
    return f"{contract}\n@hookimpl\ndef pretrain_norm():\n    return Offer(name='fast', build=lambda built: len)\n"


def answer_of(site, source, request):
    site.backend("fake", source)
    (proposal,) = [each for each in ask(manager.load("fake"), request) if not each.is_reference]
    return proposal.answer


def failure(site, source):
    site.backend("fake", source)
    with pytest.raises(BackendError) as error:
        manager.load("fake")
    return str(error.value).splitlines()


def test_a_kernel_that_does_not_know_a_new_field_is_declined_for_where_it_matters(site):
    answer = answer_of(site, norm(), later(zero_centered=True))
    assert answer.reason == "written for contract 1.0, which has no zero_centered True"


def test_a_new_field_at_its_default_means_what_was_before(site):
    assert isinstance(answer_of(site, norm(), later()), Offer)


def test_a_kernel_that_knows_the_field_answers_for_itself(site, monkeypatch):
    monkeypatch.setattr("pretrain.plugins.host.discovery.CONTRACT", (1, 1))
    assert isinstance(answer_of(site, norm("CONTRACT = (1, 1)"), later(zero_centered=True)), Offer)


def test_a_field_that_was_added_later_has_a_default():
    kinds = [kind for kind in vars(requests).values() if dataclasses.is_dataclass(kind)]
    for part in (part for kind in (*kinds, LaterNorm) for part in dataclasses.fields(kind)):
        assert "since" not in part.metadata or part.default is not dataclasses.MISSING, part


@pytest.mark.parametrize(("given", "newer"), [("(1, 7)", "pretrain"), ("(2, 0)", "pretrain"), ("(0, 3)", "pretrain-f")])
def test_a_plugin_for_another_contract_is_refused(site, given, newer):
    theirs = given.strip("()").replace(", ", ".")
    first, second = failure(site, f"CONTRACT = {given}")
    assert first.startswith(
        f"backend 'fake' (pretrain-fake 1.0) was written for contract {theirs} of pretrain's plugins"
    )
    assert first.endswith(f"has {CONTRACT[0]}.{CONTRACT[1]}.")
    assert second.startswith(f"Install a newer {newer}")


@pytest.mark.parametrize("given", ["'1.0'", "(1,)", "(1, True)", "1.0"])
def test_a_contract_is_two_numbers(site, given):
    assert "its CONTRACT is" in failure(site, f"CONTRACT = {given}")[0]


@pytest.mark.parametrize("dependency", ["pretrain<12,>=9", "pretrain[data]<12,>=9", "pretrain (<12,>=9)"])
def test_a_distribution_that_requires_another_pretrain_is_refused_before_its_import(site, dependency):
    site.backend("fake", "raise RuntimeError('imported')")
    metadata = site.folder / "pretrain_fake-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text() + f"Requires-Dist: torch>=2\nRequires-Dist: {dependency}\n")
    with pytest.raises(BackendError, match=r"\(pretrain-fake 1.0\) requires pretrain<12,>=9; this is pretrain 0"):
        manager.load("fake")
    metadata.write_text(metadata.read_text().replace(">=9", ">=0.0.1"))
    with pytest.raises(BackendError, match="imported"):
        manager.load("fake")


def test_a_hook_of_a_later_pretrain_is_an_error_with_advice(site):
    first = failure(site, "@hookimpl\ndef pretrain_hash_table_of_all_words(request):\n    return None\n")[0]
    here = f"{CONTRACT[0]}.{CONTRACT[1]}"
    assert first.endswith(f"This is contract {here}: mark a hook of a later one @hookimpl(optionalhook=True).")


def test_another_major_version_ends_the_command_with_two_lines(site, capsys, monkeypatch):
    site.backend("fake", "CONTRACT = (2, 0)")
    recipe = Path(__file__).parents[2] / "recipes" / "quickstart.yml"
    with pytest.raises(SystemExit) as end:
        main(["explain", str(recipe), "--backend", "fake"])
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert lines[0].startswith("backend 'fake' (pretrain-fake 1.0) was written for contract 2.0 of pretrain's plugins")
    assert lines[1:] == ["Install a newer pretrain."]


@pytest.fixture
def old_norm(monkeypatch):
    """A made-up hook of this contract, which the next one removes."""

    @hookspec
    @leaving((2, 0), "Implement pretrain_norm")
    def pretrain_old_norm(request):
        """Return an answer."""

    monkeypatch.setattr(hookspecs, "pretrain_old_norm", pretrain_old_norm, raising=False)
    monkeypatch.setattr(manager, "HOOKS", (*manager.HOOKS, "pretrain_old_norm"))


OLD_NORM = "\n@hookimpl\ndef pretrain_old_norm(request):\n    return Offer(name='old', build=len)\n"


def test_a_hook_that_is_to_be_removed_still_works_and_is_announced(site, old_norm):
    site.backend("fake", norm() + OLD_NORM)
    site.plugin("extra", OLD_NORM)
    plugins = manager.load("fake")
    removal = "implements pretrain_old_norm; contract 2.0 removes it. Implement pretrain_norm."
    implementers = ("plugin 'extra' (kernels-extra 2.0)", "backend 'fake' (pretrain-fake 1.0)")
    assert plugins.notices == tuple(f"{label} {removal}" for label in implementers)
    (offer,) = plugins.call(plugins.members[0], "pretrain_old_norm", request=later())
    assert offer.name == "old"


def test_a_plugin_without_such_a_hook_has_no_notice(site, old_norm):
    site.backend("fake", norm())
    assert manager.load("fake").notices == ()


def test_a_removal_is_shown_before_the_kernels(site, old_norm, capsys):
    site.backend("fake", OLD_NORM, availability="Unavailable('none here')")
    recipe = Path(__file__).parents[2] / "recipes" / "quickstart.yml"
    with pytest.raises(SystemExit):
        main(["explain", str(recipe), "--backend", "fake"])
    assert capsys.readouterr().out.startswith("backend 'fake' (pretrain-fake 1.0) implements pretrain_old_norm; ")


def test_a_removal_comes_with_a_major_version():
    removals = [removal_of(getattr(hookspecs, hook)) for hook in manager.HOOKS]
    assert all(removal.startswith(f"contract {CONTRACT[0] + 1}.0 ") for removal in removals if removal)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("Offer(name='reference', build=len)", "a kernel called 'reference', which recipes use for the core's"),
        ("[Offer(name='a', build=len), Decline(name='a', reason='b')]", "two kernels called 'a'"),
        ("Offer(name='a:b', build=len)", "the colon separates distribution and kernel"),
    ],
)
def test_a_name_that_a_recipe_could_not_use(site, answer, fault):
    site.backend("fake", f"@hookimpl\ndef pretrain_norm():\n    return {answer}\n")
    with pytest.raises(BackendError, match=f"answers pretrain_norm with .*{fault}"):
        ask(manager.load("fake"), NORM)


def test_a_kind_that_no_recipe_has(site):
    from plugins.negotiation.test_choosing import ATTENTION

    hook = "@hookimpl\ndef pretrain_attention():\n    return Offer(name='a', kind='flahs', build=len)\n"
    site.backend("fake", hook)
    with pytest.raises(BackendError, match=r"'a' of kind 'flahs', not one of: flash, triangle, softmax. Did you"):
        ask(manager.load("fake"), ATTENTION)
