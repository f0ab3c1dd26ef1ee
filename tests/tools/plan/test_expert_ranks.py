"""Plans of ranks with experts: their parameters, the state of the optimizer, and what ranks exchange."""

from __future__ import annotations

import json

import pytest

from pretrain.recipe.layout import lay_out
from pretrain.report.flops import expert_parameter_count
from rank_programs import run_ranks
from tools.plan.expert_ranks import CASES, WORLD_SIZE, recipe_of

BF16, FP32 = 2, 4


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("case", CASES)
def test_a_rank_is_planned_as_it_trains(case, tmp_path):
    """Dense parameters / tensor; experts / (expert tensor x expert); state / the replicas of each."""
    run_ranks("tools.plan.expert_ranks", tmp_path / "found.json", case, folder=tmp_path, world_size=1)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["planned"] == found["trained"]
    recipe = recipe_of(case)
    layout, model = lay_out(recipe, WORLD_SIZE), recipe.model
    ranks, parts = layout.expert_model_parallel_size, layout.expert_tensor_parallel_size
    stage = sum(model.layers_with_experts[: layout.layers_of_stages[0]]) / sum(model.layers_with_experts)
    experts = sum(count for name, count in found["planned"].items() if ".mlp.experts." in name)
    assert experts == expert_parameter_count(model) * stage / (ranks * parts)
    dense = sum(found["planned"].values()) - experts
    state = (FP32 + 8) * (dense / layout.data_parallel_size + experts / layout.expert_data_parallel_size)
    assert found["parts"]["weights"] == pytest.approx(BF16 * (dense + experts), rel=0.01)
    assert found["parts"]["optimizer"] == pytest.approx(state, rel=0.05)
    layers = round(stage * sum(model.layers_with_experts))
    tokens = model.seq_length * recipe.train.micro_batch_size // layout.tensor_model_parallel_size
    rows = tokens * model.moe_router_topk * parts * model.hidden_size * BF16
    exchanged = {tuple(each[1:4]): each[4] for each in found["messages"] if each[0] == "all-to-all"}
    assert exchanged["experts", ranks * parts, rows] == 4 * layers  # there and back, forward and backward
