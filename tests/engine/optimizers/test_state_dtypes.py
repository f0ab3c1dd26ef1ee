"""Adam's state in bf16: on every engine, in checkpoints of every layout, and from fp32 and back."""

from __future__ import annotations

import pytest
import torch

from engine import ranks, tiny
from engine.comparison import check
from engine.layouts import BF16, SHALLOW, STAGE, ZERO1
from engine.optimizers.state_layouts import BF16_STATE, STATE_ONE_RANK_FULL, STATE_TWO_RANKS, STATE_TWO_RANKS_FULL
from pretrain.checkpoint import storage
from pretrain.checkpoint.sharded_format import MAIN, read_index
from pretrain.engine.optimizers.choice import state_bytes
from pretrain.errors import RecipeError
from pretrain.recipe.checks.training import SLOWEST_IN_BF16
from pretrain.tools.convert.formats.sharded import index_of, sharded_tensors

WHERE = {
    "megatron": (),
    "megatron, bf16": BF16,
    "distributed optimizer": ZERO1,
    "distributed optimizer, bf16": (*ZERO1, *BF16),
    **{f"ZeRO {stage}": STAGE[stage] for stage in range(4)},
    **{f"ZeRO {stage}, bf16": (*STAGE[stage], *BF16) for stage in range(1, 4)},
}
FULL = {"megatron, bf16", "distributed optimizer", "ZeRO 0", "ZeRO 1", "ZeRO 2", "ZeRO 3", "ZeRO 2, bf16"}


def recipe_of(*overrides):
    return tiny.tiny(*SHALLOW, *overrides)


def save(engine, folder, iteration):
    folder.mkdir()
    storage.save(engine, folder, {"iteration": iteration, "consumed_samples": 8 * iteration})
    return folder


def states_in(folder):
    """The optimizer's state and the main weights in a checkpoint, by their keys."""
    found = sharded_tensors(folder, index_of(folder))
    return {key: tensor.whole().whole() for key, tensor in found.items() if key.startswith("optimizer.state.")}


def dtypes_in(folder):
    entries = read_index(folder).state_dict_metadata.items()
    return {key.split(".")[2]: entry.properties.dtype for key, entry in entries if key.startswith("optimizer.state.")}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.full] * (name in FULL)) for name in WHERE])
def test_a_resumed_training_has_the_same_bits(name, tmp_path):
    recipe = recipe_of(*BF16_STATE, *WHERE[name])
    with tiny.engine_of(recipe) as engine:
        tiny.train(engine, 0, 3)
        saved = save(engine, tmp_path / "3", 3)
        expected = tiny.train(engine, 3, 6)
        last = states_in(save(engine, tmp_path / "6", 6))
    dtypes = dtypes_in(saved)
    assert dtypes.pop(MAIN, torch.float32) is torch.float32
    assert dtypes == {"exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16}
    with tiny.engine_of(recipe) as engine:
        storage.load(engine, saved, weights_only=False)
        assert tiny.train(engine, 3, 6) == expected
        again = states_in(save(engine, tmp_path / "again", 6))
    assert again.keys() == last.keys()
    assert all(torch.equal(again[key], last[key]) for key in last)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name != "distributed optimizer")) for name in WHERE]
)
def test_a_state_in_fp32_is_rounded_and_one_in_bf16_is_widened(name, tmp_path):
    plain, rounded = recipe_of("optimizer.adam_beta2=0.95", *WHERE[name]), recipe_of(*BF16_STATE, *WHERE[name])
    folder = tmp_path / "trained"
    with tiny.engine_of(plain) as engine:
        tiny.train(engine, 0, 3)
        given = states_in(save(engine, folder, 3))
    for number, recipe in enumerate((rounded, plain)):
        with tiny.engine_of(recipe) as engine:
            storage.load(engine, folder, weights_only=False)
            folder = save(engine, tmp_path / str(number), 3)
            found = states_in(folder)
        for key, value in given.items():
            expected = value if f".{MAIN}." in key else value.bfloat16()
            assert torch.equal(found[key].float(), expected.float()), key
        assert set(dtypes_in(folder).values()) - {torch.float32} == ({torch.bfloat16} if recipe is rounded else set())


def test_either_state_may_be_in_bf16_alone(tmp_path):
    for key, other in (("exp_avg", "exp_avg_sq"), ("exp_avg_sq", "exp_avg")):
        recipe = recipe_of("optimizer.adam_beta2=0.95", f"optimizer.{key}_dtype=bf16")
        assert state_bytes(recipe.optimizer) == 2 + 4
        with tiny.engine_of(recipe) as engine:
            tiny.train(engine, 0, 2)
            assert dtypes_in(save(engine, tmp_path / key, 2)) == {key: torch.bfloat16, other: torch.float32}


@pytest.mark.parametrize("name", [name for name in WHERE if "bf16" not in name and name != "megatron"])
def test_engines_train_alike(name):
    """The same rounding of the same numbers: but where one is near a tie, its neighbour in bf16 is 2^-8 away."""
    expected = tiny.curve(*SHALLOW, *BF16_STATE)
    for step, wanted in zip(tiny.curve(*SHALLOW, *BF16_STATE, *WHERE[name]), expected, strict=True):
        assert step == pytest.approx(wanted, rel=1e-5)


TABLE = "STATE_TWO_RANKS"


@pytest.mark.ranks
@pytest.mark.parametrize("name", STATE_TWO_RANKS)
def test_two_ranks_train_as_one(name, two_ranks):
    check(two_ranks[name], STATE_TWO_RANKS[name])


@pytest.fixture(scope="module")
def further(folder):
    return ranks.run("STATE_TWO_RANKS_FULL", 2, folder)


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("name", STATE_TWO_RANKS_FULL)
def test_further_layouts_train_as_one(name, further):
    check(further[name], STATE_TWO_RANKS_FULL[name])


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.usefixtures("further")
@pytest.mark.parametrize("name", STATE_ONE_RANK_FULL)
def test_a_checkpoint_of_two_ranks_resumes_on_one(name, folder):
    check(tiny.run(STATE_ONE_RANK_FULL[name], folder), STATE_ONE_RANK_FULL[name])


@pytest.mark.parametrize(("decay", "falls"), [(SLOWEST_IN_BF16 - 2**-12, True), (SLOWEST_IN_BF16 + 2**-12, False)])
def test_a_mean_in_bf16_falls_up_to_the_bound(decay, falls):
    """From every number between two powers of two, where nothing comes in."""
    start = (1 + torch.arange(128) / 128).bfloat16()
    mean = start
    for _ in range(2000):
        mean = (mean.float() * decay).bfloat16()
    assert bool((mean < start / 2).all()) == falls


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("optimizer.exp_avg_sq_dtype=bf16",), r"bf16 with optimizer.adam_beta2 0.999 would never fall"),
        (("optimizer.exp_avg_dtype=bf16", "optimizer.adam_beta1=0.997"), r"bf16 with optimizer.adam_beta1 0.997"),
        (("optimizer.exp_avg_dtype=fp16",), r"optimizer.exp_avg_dtype"),
        (("optimizer.exp_avg_sq_dtype=fp8",), r"optimizer.exp_avg_sq_dtype"),
        (("optimizer.exp_avg_dtype=bf16", "optimizer.name=muon"), r"optimizer.exp_avg_dtype.*no effect"),
        (
            (*STAGE[2], *BF16, "optimizer.exp_avg_dtype=bf16", "engine.zero.offload_optimizer.device=cpu"),
            r"bf16 conflicts with engine.zero.offload_optimizer: the Adams of the host keep fp32",
        ),
    ],
)
def test_what_cannot_be_is_refused(overrides, message):
    with pytest.raises(RecipeError, match=message):
        tiny.tiny(*overrides)
