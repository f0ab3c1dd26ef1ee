"""Answers of plugins to one request."""

from __future__ import annotations

import pytest
import torch

from pretrain.errors import BackendError
from pretrain.plugins.host import manager
from pretrain.plugins.negotiation.choosing import ask
from pretrain.plugins.requests import NormRequest

pytestmark = pytest.mark.usefixtures("reference")

REQUEST = NormRequest(
    device_type="cpu",
    dtype=torch.float32,
    kind="LayerNorm",
    hidden_size=8,
    epsilon=1e-5,
    weight_dtype=torch.float32,
)


def norm_hook(answer: str) -> str:
    return f"@hookimpl\ndef pretrain_norm(request):\n    return {answer}\n"


def test_every_plugin_is_asked_in_order_and_has_its_provider(site):
    site.plugin("extra", norm_hook("Offer(name='first', build=print, provider='apex 0.1')"))
    site.backend("fake", norm_hook("Decline(name='second', reason=f'h = {request.hidden_size}')"))
    heard = [(found.answer.name, found.provider, found.is_reference) for found in ask(manager.load("fake"), REQUEST)]
    assert heard == [
        ("first", "kernels-extra 2.0 (apex 0.1)", False),
        ("second", "pretrain-fake 1.0", False),
        ("reference", "pretrain 0", True),
    ]


def test_one_plugin_may_give_several_answers_or_none(site):
    site.plugin("silent", norm_hook("None"))
    answers = "[Offer(name='a', build=print), Decline(name='b', reason='no'), Offer(name='c', build=print)]"
    site.backend("fake", norm_hook(answers))
    assert [found.answer.name for found in ask(manager.load("fake"), REQUEST)] == ["a", "b", "c", "reference"]


def test_a_hook_that_ignores_the_request_may_leave_it_out(site):
    site.backend("fake", "@hookimpl\ndef pretrain_norm():\n    return Offer(name='any', build=print)\n")
    assert ask(manager.load("fake"), REQUEST)[0].answer.name == "any"


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("print", "builtin_function_or_method"),
        ("'fast'", "str: 'fast'"),
        ("[Offer(name='a', build=print), 3]", "int: 3"),
        ("Offer(name='', build=print)", "a kernel called ''"),
        ("Offer(name='auto', build=print)", "a kernel called 'auto'"),
        ("Offer(name='a', build=None)", "whose build is NoneType"),
        ("Decline(name='a', reason='')", "a Decline of 'a' without a reason"),
    ],
)
def test_an_answer_of_a_wrong_kind_names_plugin_and_hook(site, answer, fault):
    site.backend("fake", norm_hook(answer))
    with pytest.raises(BackendError) as error:
        ask(manager.load("fake"), REQUEST)
    assert "backend 'fake' (pretrain-fake 1.0) answers pretrain_norm with" in str(error.value)
    assert fault in str(error.value)


def test_a_hook_that_raises_names_plugin_and_hook(site):
    site.plugin("wild", norm_hook("1 / 0"))
    site.backend("fake")
    with pytest.raises(BackendError, match=r"plugin 'wild' \(kernels-wild 2.0\) raised in pretrain_norm: ZeroDivision"):
        ask(manager.load("fake"), REQUEST)
