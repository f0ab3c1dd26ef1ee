"""The kernel table: the chosen kernels, their providers, and the reasons against others."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pretrain.plugins.host import manager
from pretrain.plugins.negotiation.kernel_table import KernelTable, check_same_on_all_ranks
from pretrain.plugins.negotiation.kernels import negotiate
from pretrain.plugins.requests import NormRequest
from pretrain.report.plain_text import kernel_table_text

pytestmark = pytest.mark.usefixtures("reference")

NORM = NormRequest(
    device_type="cpu",
    dtype=torch.bfloat16,
    kind="LayerNorm",
    hidden_size=8,
    epsilon=1e-5,
    weight_dtype=torch.float32,
)
HOOK = """
@hookimpl
def pretrain_norm(request):
    return [
        Decline(name="tiny", kind="fused", reason="hidden_size 8, at most 4"),
        Offer(name="fast", kind="fused", build=lambda built: print, provider="apex 0.1"),
        Offer(name="slow", build=lambda built: print),
    ]
"""


@pytest.fixture
def table(site):
    site.backend("fake", HOOK)
    return negotiate(manager.load("fake"), [NORM], {}, "allow").table


def test_a_row_names_kernel_kind_provider_and_request(table):
    (row,) = table.rows
    assert (row.operation, row.kernel, row.kind) == ("norm", "fast", "fused")
    assert row.provider == "pretrain-fake 1.0 (apex 0.1)"
    assert row.request["dtype"] == "bfloat16"


def test_a_row_says_why_not_each_of_the_others(table):
    reasons = {other.kernel: other.why for other in table.rows[0].rejected}
    assert reasons == {
        "tiny": "declined: hidden_size 8, at most 4",
        "slow": "offered, comes later in the order",
        "reference": "offered, the reference comes last",
    }


def test_a_choice_of_the_recipe_is_the_reason_against_the_rest(site):
    site.backend("fake", HOOK)
    table = negotiate(manager.load("fake"), [NORM], {"norm": "slow"}, "allow").table
    assert {other.kernel: other.why for other in table.rows[0].rejected}["fast"] == (
        "offered, but the recipe names 'slow'"
    )


def test_among_kernels_of_the_reference_the_order_is_the_reason(site, reference):
    offers = "[Offer(name='better', build=lambda built: len), Offer(name='worse', build=lambda built: len)]"
    site.module(reference.target, f"@hookimpl\ndef pretrain_norm():\n    return {offers}\n")
    site.backend("fake")
    (row,) = negotiate(manager.load("fake"), [NORM], {}, "allow").table.rows
    assert row.kernel == "better"
    assert [other.why for other in row.rejected] == ["offered, comes later in the order"]


def test_the_table_is_plain_json(table):
    plain = table.to_json()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["digest"] == table.digest()


class TestDigest:
    def test_it_is_the_same_for_the_same_decisions(self, table):
        assert table.digest() == dataclasses.replace(table).digest()
        assert len(table.digest()) == 64

    def test_the_digest_does_not_cover_reasons_against_others(self, table):
        (row,) = table.rows
        alone = dataclasses.replace(table, rows=(dataclasses.replace(row, rejected=()),))
        assert alone.digest() == table.digest()

    @pytest.mark.parametrize(
        ("field", "value"),
        [("kernel", "slow"), ("kind", ""), ("provider", "other 1"), ("request", {"dtype": "float32"})],
    )
    def test_the_digest_covers_every_decision(self, table, field, value):
        (row,) = table.rows
        changed = dataclasses.replace(table, rows=(dataclasses.replace(row, **{field: value}),))
        assert changed.digest() != table.digest()


class TestText:
    def test_the_short_form_shows_decisions_and_declines(self, table):
        assert kernel_table_text(table).splitlines() == [
            f"kernels of backend 'fake' (pretrain-fake 1.0), {table.digest()[:12]}",
            "operation  kernel  kind   provider",
            "norm       fast    fused  pretrain-fake 1.0 (apex 0.1)",
            "    tiny (fused) declined: hidden_size 8, at most 4",
        ]

    def test_the_long_form_shows_the_request_and_every_reason(self, table):
        text = kernel_table_text(table, everything=True)
        assert "    asked: device_type cpu, dtype bfloat16, deterministic False, kind LayerNorm" in text
        assert "    slow offered, comes later in the order" in text
        assert "    reference of pretrain 0 offered, the reference comes last" in text

    def test_long_reasons_are_wrapped(self, table):
        (row,) = table.rows
        talkative = dataclasses.replace(row.rejected[0], why="declined: " + "many words " * 40)
        long = dataclasses.replace(table, rows=(dataclasses.replace(row, rejected=(talkative,)),))
        assert max(len(line) for line in kernel_table_text(long).splitlines()) <= 100


SCRIPT = Path(__file__).with_name("kernel_agreement_rank.py")
SAME = {"softmax": "fused", "norm": "fast"}
ROUNDS = {"equal": SAME, "other order": {"norm": "fast", "softmax": "fused"}, "other kernel": {**SAME, "norm": "slow"}}
ROUNDS["missing operation"] = {"softmax": "fused"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, forked_python):
    """Output of each rank for each round; rank 0 always has the same table."""
    store = tmp_path_factory.mktemp("agreement") / "store"
    tables = [[json.dumps(SAME)] * len(ROUNDS), [json.dumps(kernels) for kernels in ROUNDS.values()]]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(store), str(rank), *rounds],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, rounds in enumerate(tables)
    ]
    outputs = [[json.loads(line) for line in rank.communicate(timeout=300)[0].splitlines()] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return {name: (first, second) for name, first, second in zip(ROUNDS, *outputs, strict=True)}


@pytest.mark.ranks
@pytest.mark.parametrize("round_", ["equal", "other order"])
def test_equal_decisions_pass(outcomes, round_):
    assert outcomes[round_] == ("agreed", "agreed")


@pytest.mark.ranks
def test_another_kernel_names_rank_and_operation_on_every_rank(outcomes):
    first, second = outcomes["other kernel"]
    assert first == second
    assert "rank 1, norm: kernel 'slow'; rank 0: kernel 'fast'" in first
    assert "softmax" not in first


@pytest.mark.ranks
def test_an_operation_that_one_rank_lacks_is_named(outcomes):
    first, second = outcomes["missing operation"]
    assert first == second
    assert "rank 1, norm: not asked for; rank 0: kernel 'fast'" in first


def test_one_process_needs_no_comparison():
    check_same_on_all_ranks(KernelTable(backend="fake", provider="fake 1", rows=()))
