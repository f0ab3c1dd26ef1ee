"""Muon updates whole matrices, whatever ranks they are cut over, and torch's as one matrix."""

from __future__ import annotations

import pytest
import torch

from engine import ranks, tiny
from engine.comparison import check
from engine.layouts import QWEN, SHALLOW
from engine.optimizers.muon_layouts import (
    MUON,
    MUON_FOUR_RANKS_FULL,
    MUON_ONE_RANK,
    MUON_TWO_RANKS,
    MUON_TWO_RANKS_FULL,
)
from pretrain.checkpoint import storage
from pretrain.engine.optimizers.muon import MatrixStep
from pretrain.errors import CheckpointError, RecipeError
from pretrain.reference.muon import COEFFICIENTS, orthogonalize

QKV = "self_attention.linear_qkv.weight"
WHOLE = ("linear_proj.weight", "linear_fc1.weight", "linear_fc2.weight")


TABLE = "MUON_TWO_RANKS"


@pytest.mark.ranks
@pytest.mark.parametrize("name", MUON_TWO_RANKS)
def test_two_ranks_train_as_one(name, two_ranks):
    check(two_ranks[name], MUON_TWO_RANKS[name])


@pytest.mark.ranks
@pytest.mark.parametrize("name", MUON_ONE_RANK)
def test_a_checkpoint_of_two_ranks_resumes_on_one(name, folder, two_ranks):
    check(tiny.run(MUON_ONE_RANK[name], folder), MUON_ONE_RANK[name])


@pytest.fixture(scope="module")
def further(folder, two_ranks):  # which has saved a checkpoint that one of them loads
    tables = {"MUON_TWO_RANKS_FULL": 2, "MUON_FOUR_RANKS_FULL": 4}
    return {name: each for table, size in tables.items() for name, each in ranks.run(table, size, folder).items()}


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("name", [*MUON_TWO_RANKS_FULL, *MUON_FOUR_RANKS_FULL])
def test_further_layouts_train_as_one(name, further):
    check(further[name], {**MUON_TWO_RANKS_FULL, **MUON_FOUR_RANKS_FULL}[name])


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("mode", "factor"), [("spectral", "match_rms_adamw"), ("shape_scaling", "original")])
def test_weights_follow_torchs_muon(nesterov, mode, factor):
    """Over four steps with decay; torch's iteration is in bf16, 2^-8 of an update of about 1e-2."""
    settings = (f"optimizer.muon_use_nesterov={str(nesterov).lower()}", f"optimizer.muon_scale_mode={mode}")
    if mode == "shape_scaling":
        settings += ("optimizer.muon_extra_scale_factor=1",)
    recipe = tiny.tiny(*MUON, *SHALLOW, *settings, "optimizer.weight_decay=10", "optimizer.clip_grad=0")
    with tiny.engine_of(recipe) as engine:
        named = {name: weight for name, weight in engine.models[0].named_parameters() if name.endswith(WHOLE)}
        theirs = [torch.nn.Parameter(weight.detach().clone()) for weight in named.values()]
        options = {"momentum": 0.95, "nesterov": nesterov, "weight_decay": 10, "adjust_lr_fn": factor}
        reference = torch.optim.Muon(theirs, lr=1.0, **options)
        for iteration in range(4):
            reference.param_groups[0]["lr"] = engine.learning_rate
            tiny.take_step(engine, iteration)
            for weight, other in zip(named.values(), theirs, strict=True):
                other.grad = weight.main_grad.clone()
            reference.step()
        for weight, other in zip(named.values(), theirs, strict=True):
            torch.testing.assert_close(weight.detach(), other.detach(), rtol=0, atol=6e-4)


def test_the_scale_of_each_mode_is_by_shape():
    def scale(mode):
        section = tiny.tiny(*MUON, f"optimizer.muon_scale_mode={mode}", "optimizer.muon_extra_scale_factor=3").optimizer
        step = MatrixStep(section=section, heads=(1, 1, 1), orthogonalize=orthogonalize, ranks=None, new_state=None)
        return step._scale(8, 2)

    expected = {"spectral": 3 * 8**0.5, "unit_rms_norm": 3 * 2, "shape_scaling": 3 * 2}
    assert {mode: scale(mode) for mode in expected} == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(3, 24, 40), (2, 40, 24)])
def test_the_iteration_is_a_polynomial_of_the_singular_values(shape):
    matrices = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    values = values / values.square().sum(1, keepdim=True).sqrt()
    a, b, c = COEFFICIENTS
    for _ in range(5):
        values = a * values + b * values**3 + c * values**5
    torch.testing.assert_close(orthogonalize(matrices, 5), left * values[:, None] @ right)
    torch.testing.assert_close(
        orthogonalize(matrices.float(), 5).double(), left * values[:, None] @ right, rtol=0, atol=1e-4
    )


def test_zeros_stay_zeros():
    assert not orthogonalize(torch.zeros(2, 3, 5), 5).any()


def test_queries_keys_and_values_gate_and_up_are_matrices_of_their_own():
    recipe = tiny.tiny(*MUON, *QWEN, *SHALLOW, "optimizer.weight_decay=0", "optimizer.clip_grad=0")
    model = recipe.model
    groups, size = model.num_query_groups, model.head_size
    with tiny.engine_of(recipe) as engine:
        named = dict(engine.models[0].named_parameters())
        before = {name: weight.detach().clone() for name, weight in named.items()}
        tiny.take_step(engine, 0)
        moved = {name: (before[name] - weight.detach()) / 5e-3 for name, weight in named.items()}
    qkv = next(moved[name] for name in moved if name.endswith(QKV)).view(groups, -1, size, model.hidden_size)
    queries = qkv[:, :-2].reshape(-1, model.hidden_size)
    gate, up = next(moved[name] for name in moved if name.endswith("linear_fc1.weight")).chunk(2)
    for part in (queries, qkv[:, -2].flatten(0, 1), qkv[:, -1].flatten(0, 1), gate, up):
        values = torch.linalg.svdvals(part) / (0.2 * max(part.shape) ** 0.5)
        # Five steps take most of them near 1; of matrices that were made orthogonal together they would be smaller.
        assert 0.6 < values.median() < 1.3
        assert values[0] < 1.3


def test_updates_have_the_size_of_adamws():
    with tiny.engine_of(tiny.tiny(*MUON, "optimizer.weight_decay=0", "optimizer.clip_grad=0")) as engine:
        weight = next(w for name, w in engine.models[0].named_parameters() if name.endswith(QKV))
        before = weight.detach().clone()
        tiny.take_step(engine, 0)
        moved = (weight.detach() - before).square().mean().sqrt().item() / 5e-3
    assert 0.1 < moved < 0.4  # Liu et al. 2025, section 2.2: 0.2 to 0.4 is AdamW's


@pytest.mark.parametrize("name", ["distributed optimizer", "deepspeed"])
def test_ranks_that_divide_matrices_are_refused(name):
    overrides = {
        "distributed optimizer": "parallel.use_distributed_optimizer=true",
        "deepspeed": "engine.name=deepspeed",
    }
    with pytest.raises(RecipeError, match=r"optimizer\.name.*muon"):
        tiny.tiny(*MUON, overrides[name])


def test_its_keys_are_refused_with_adam():
    with pytest.raises(RecipeError, match=r"optimizer\.muon_momentum.*no effect"):
        tiny.tiny("optimizer.muon_momentum=0.9")


@pytest.mark.parametrize(("saves", "loads"), [("muon", "adamw"), ("adamw", "muon")])
def test_adams_state_is_not_taken_for_its_own(saves, loads, tmp_path):
    with tiny.engine_of(tiny.tiny(*SHALLOW, f"optimizer.name={saves}")) as trained:
        storage.save(trained, tmp_path, {"iteration": 0, "consumed_samples": 0})
    with tiny.engine_of(tiny.tiny(*SHALLOW, f"optimizer.name={loads}")) as other:
        with pytest.raises(CheckpointError, match="has the state of another optimizer"):
            storage.load(other, tmp_path, weights_only=False)
        storage.load(other, tmp_path, weights_only=True)
