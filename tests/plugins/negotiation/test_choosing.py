"""Choice of the kernel of each operation."""

from __future__ import annotations

import pytest
import torch

from pretrain.errors import BackendError, KernelError
from pretrain.plugins.host import manager
from pretrain.plugins.negotiation.choosing import ask, choose
from pretrain.plugins.negotiation.kernels import negotiate
from pretrain.plugins.requests import AttentionRequest, NormRequest, OptimizerRequest, SoftmaxRequest

pytestmark = pytest.mark.usefixtures("reference")

NORM = NormRequest(
    device_type="cpu",
    dtype=torch.float32,
    kind="LayerNorm",
    hidden_size=8,
    epsilon=1e-5,
    weight_dtype=torch.float32,
)
SOFTMAX = SoftmaxRequest(device_type="cpu", dtype=torch.float32, heads=2, queries=4, keys=4)
ATTENTION = AttentionRequest(
    device_type="cpu",
    dtype=torch.float32,
    heads=2,
    query_groups=2,
    head_size=4,
    seq_length=4,
    micro_batch_size=1,
    scale=0.5,
)
OPTIMIZER = OptimizerRequest(device_type="cpu", dtype=torch.float32)

NORMS = """
@hookimpl
def pretrain_norm(request):
    return [
        Decline(name="tiny", kind="fused", reason=f"hidden_size {request.hidden_size}, at most 4"),
        Offer(name="fast", kind="fused", build=lambda built: lambda x, weight, bias=None: "fast norm"),
        Offer(name="slow", build=lambda built: lambda x, weight, bias=None: "slow norm"),
    ]
"""


@pytest.fixture
def plugins(site):
    site.backend("fake", NORMS)
    return manager.load("fake")


def test_the_first_offer_is_taken(plugins):
    kernels = negotiate(plugins, [NORM], {}, "allow")
    assert kernels.norm(None, None) == "fast norm"


def test_a_plugin_of_the_kernel_group_comes_before_the_backend(site):
    site.plugin("extra", "@hookimpl\ndef pretrain_norm():\n    return Offer(name='extra', build=lambda built: len)\n")
    site.backend("fake", NORMS)
    assert negotiate(manager.load("fake"), [NORM], {}, "allow").norm is len


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [("auto", "fast norm"), ("slow", "slow norm"), ("fused", "fast norm"), ("reference", "reference norm")],
)
def test_a_recipe_may_name_a_kernel_or_a_kind(plugins, wanted, taken):
    assert negotiate(plugins, [NORM], {"norm": wanted}, "allow").norm(None, None) == taken


TWINS = "@hookimpl\ndef pretrain_norm():\n    return Offer(name='extra', build=lambda built: {kernel})\n"


@pytest.mark.parametrize(
    ("wanted", "taken"), [("extra", len), ("kernels-one:extra", len), ("kernels-two:extra", print), ("auto", len)]
)
def test_a_recipe_may_name_the_distribution_of_a_kernel(site, wanted, taken):
    site.plugin("one", TWINS.format(kernel="len"))
    site.plugin("two", TWINS.format(kernel="print"))
    site.backend("fake")
    assert negotiate(manager.load("fake"), [NORM], {"norm": wanted}, "allow").norm is taken


def test_kernels_of_one_name_are_listed_with_their_distributions(site):
    site.plugin("one", TWINS.format(kernel="len"))
    site.plugin("two", TWINS.format(kernel="print"))
    site.backend("fake")
    with pytest.raises(KernelError, match=r"Offered here: kernels-one:extra, kernels-two:extra, reference\."):
        negotiate(manager.load("fake"), [NORM], {"norm": "kernels-six:extra"}, "allow")


def test_a_named_kernel_that_declines_is_an_error_with_its_reason(plugins):
    with pytest.raises(KernelError) as error:
        negotiate(plugins, [NORM], {"norm": "tiny"}, "allow")
    assert str(error.value) == (
        "kernels.norm: 'tiny' cannot serve this recipe.\n"
        "  'tiny' (pretrain-fake 1.0) declines: hidden_size 8, at most 4\n"
        "Offered here: fast, slow, reference; kinds: fused."
    )


def test_an_unknown_kernel_lists_the_known_ones(plugins):
    with pytest.raises(KernelError) as error:
        negotiate(plugins, [NORM], {"norm": "fats"}, "allow")
    assert str(error.value) == (
        "kernels.norm: no plugin has a kernel or kind 'fats'.\n"
        "Offered here: fast, slow, reference; kinds: fused. Did you mean 'fast'?"
    )


def test_unrequested_operations_are_not_negotiated(plugins):
    kernels = negotiate(plugins, [NORM], {"softmax": "never asked"}, "allow")
    assert "norm" in kernels
    assert "softmax" not in kernels
    with pytest.raises(AttributeError, match="no kernel was asked for softmax; there are: norm"):
        _ = kernels.softmax


def test_an_operation_without_an_offer_is_an_error_with_every_decline(site):
    site.backend("fake", "@hookimpl\ndef pretrain_softmax(request):\n    return Decline(name='s', reason='4 keys')\n")
    with pytest.raises(
        KernelError, match=r"no kernel for softmax on cpu.\n  's' \(pretrain-fake 1.0\) declines: 4 keys"
    ):
        negotiate(manager.load("fake"), [SOFTMAX], {}, "allow")


class TestForbiddenFallback:
    def test_the_reference_is_not_chosen_silently(self, site):
        site.backend("fake", "@hookimpl\ndef pretrain_norm(request):\n    return Decline(name='n', reason='h is 8')\n")
        with pytest.raises(KernelError) as error:
            negotiate(manager.load("fake"), [NORM], {}, "forbid")
        assert "norm:\n  'n' (pretrain-fake 1.0) declines: h is 8" in str(error.value)
        assert "kernels.fallback=allow" in str(error.value)

    def test_an_operation_that_no_plugin_has_says_so(self, site):
        site.backend("fake")
        with pytest.raises(KernelError, match="norm: no plugin offers it"):
            negotiate(manager.load("fake"), [NORM], {}, "forbid")

    def test_naming_the_reference_is_a_choice(self, site):
        site.backend("fake")
        kernels = negotiate(manager.load("fake"), [NORM], {"norm": "reference"}, "forbid")
        assert kernels.norm(None, None) == "reference norm"

    def test_naming_a_kind_is_not_naming_the_reference(self, site, reference):
        offer = "Offer(name='blocks', kind='blocks', build=print)"
        site.module(reference.target, f"@hookimpl\ndef pretrain_softmax():\n    return {offer}\n")
        site.backend("fake")
        with pytest.raises(KernelError, match="softmax: no plugin offers it"):
            negotiate(manager.load("fake"), [SOFTMAX], {"softmax": "blocks"}, "forbid")

    def test_the_offer_of_a_plugin_is_taken(self, plugins):
        assert negotiate(plugins, [NORM], {}, "forbid").norm(None, None) == "fast norm"


class TestBuilding:
    SOURCE = """
    @hookimpl
    def pretrain_softmax(request):
        return Offer(name="s", build=lambda built: lambda scores, mask=None: "weights")

    @hookimpl
    def pretrain_attention(request):
        def build(built):
            softmax = built["softmax"]
            return lambda *arguments: f"context of {softmax(None)}"
        return Offer(name="a", kind="softmax", build=build)
    """

    def test_attention_is_given_the_softmax_kernel_in_any_order_of_requests(self, site):
        site.backend("fake", self.SOURCE)
        kernels = negotiate(manager.load("fake"), [ATTENTION, SOFTMAX], {}, "allow")
        assert kernels.attention(None, None, None) == "context of weights"

    @pytest.mark.parametrize("kind", ["flash", "triangle"])
    def test_attention_with_a_softmax_of_its_own_leaves_no_softmax_kernel(self, site, kind):
        site.backend("fake", self.SOURCE.replace('kind="softmax"', f'kind="{kind}"').replace('built["softmax"]', "len"))
        plugins = manager.load("fake")
        kernels = negotiate(plugins, [SOFTMAX, ATTENTION], {}, "allow")
        assert [row.operation for row in kernels.table.rows] == ["attention"]
        with pytest.raises(
            KernelError,
            match=rf"^kernels.softmax: 's' has no effect: attention is 'a' \({kind}\), .*\nDelete the key, or",
        ):
            negotiate(plugins, [SOFTMAX, ATTENTION], {"softmax": "s"}, "allow")

    def test_kernels_of_an_earlier_negotiation_are_passed_on_and_kept(self, site):
        site.backend("fake", self.SOURCE)
        plugins = manager.load("fake")
        earlier = negotiate(plugins, [SOFTMAX], {}, "allow")
        kernels = negotiate(plugins, [ATTENTION], {}, "allow", earlier=earlier)
        assert kernels.attention(None, None, None) == "context of weights"
        assert [row.operation for row in kernels.table.rows] == ["softmax", "attention"]

    def test_only_the_kernel_that_is_taken_is_built(self, site):
        hook = "@hookimpl\ndef pretrain_norm():\n    return [Offer(name='a', build=lambda b: len), {}]\n"
        site.backend("fake", hook.format("Offer(name='b', build=lambda b: 1 / 0)"))
        assert negotiate(manager.load("fake"), [NORM], {}, "allow").norm is len

    def test_choosing_builds_nothing(self, site):
        site.backend("fake", "@hookimpl\ndef pretrain_norm():\n    return Offer(name='a', build=lambda b: 1 / 0)\n")
        (choice,) = choose(manager.load("fake"), [NORM], {}, "allow")
        assert choice.offer.name == "a"

    @pytest.mark.parametrize(
        ("operation", "request_", "build", "message"),
        [
            ("norm", NORM, "1 / 0", "cannot be built: ZeroDivisionError"),
            ("norm", NORM, "None", "its build returned NoneType, not something callable"),
            ("optimizer", OPTIMIZER, "print", "its build returned builtin_function_or_method, not OptimizerKernels"),
        ],
    )
    def test_a_build_that_fails_names_kernel_and_provider(self, site, operation, request_, build, message):
        site.backend(
            "fake", f"@hookimpl\ndef pretrain_{operation}():\n    return Offer(name='a', build=lambda b: {build})\n"
        )
        with pytest.raises(BackendError, match=message) as error:
            negotiate(manager.load("fake"), [request_], {}, "allow")
        assert f"kernel 'a' (pretrain-fake 1.0) for {operation}" in str(error.value)


def test_two_requests_for_one_operation_are_a_mistake_of_the_caller(plugins):
    with pytest.raises(ValueError, match="several requests for one operation"):
        negotiate(plugins, [NORM, NORM], {}, "allow")


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
