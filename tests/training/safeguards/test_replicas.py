"""Replicas that differ: which ranks and which weights are named."""

from __future__ import annotations

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.checkpoint.folder import CheckpointFolder
from pretrain.errors import CheckpointError, TrainingError
from pretrain.launch.world import free_port
from pretrain.recipe.layout import lay_out
from pretrain.training.progress import Progress
from pretrain.training.safeguards import replicas
from pretrain.training.safeguards.replicas import ReplicaCheck, WeightHash, describe, multipliers
from pretrain.training.saving import Saving
from rank_programs import run_ranks

NAMES = ["word_embeddings.weight", "mlp.linear_fc1.weight (layer 7 of 12)", "mlp.linear_fc2.weight (layer 7 of 12)"]


def test_one_rank_against_the_others_is_named_with_its_weights():
    assert describe([[1, 2, 3], [1, 9, 3], [1, 2, 3]], NAMES, [1, 3, 5]) == (
        "weights differ from those of the other replicas: rank 3 in mlp.linear_fc1.weight (layer 7 of 12). Ranks 1 and "
        "5 are equal."
    )


def test_of_two_replicas_nobody_knows_which_one_is_wrong():
    text = describe([[1, 2, 3], [1, 9, 3]], NAMES, [0, 1])
    assert text.startswith("the replicas of ranks 0 and 1 do not hold equal weights: mlp.linear_fc1.weight (layer 7 ")
    assert text.endswith("No majority of them is equal, so the wrong one is unknown.")


def test_many_weights_are_counted():
    names = [f"weight {number}" for number in range(9)]
    text = describe([[1] * 9, [2] * 9, [1] * 9], names, [0, 1, 2])
    assert "rank 1 in weight 0, weight 1, weight 2, weight 3, weight 4 and 4 more. Ranks 0 and 2 are equal." in text


def test_many_ranks_are_shortened():
    text = describe([[1]] * 63 + [[2]], ["weight"], list(range(64)))
    assert text.endswith("rank 63 in weight. Ranks 0, 1, 2, 3, 4, 5, ... and 62 are equal.")


@given(wrong=st.sets(st.integers(min_value=0, max_value=6), min_size=1, max_size=3))
def test_any_minority_is_named(wrong):
    hashes = [[100 + rank if rank in wrong else 7] for rank in range(7)]
    text = describe(hashes, ["weight"], list(range(7)))
    named = text.split(": ", 1)[1].split(". Ranks")[0]
    assert named == "; ".join(f"rank {rank} in weight" for rank in sorted(wrong))


def test_ranks_that_each_differ_in_another_weight_are_all_named():
    assert describe([[9, 1, 1], [1, 9, 1], [1, 1, 9]], ["a", "b", "c"], [0, 1, 2]) == (
        "weights differ from those of the other replicas: rank 0 in a; rank 1 in b; rank 2 in c."
    )
    assert describe([[9, 1], [1, 9], [1, 1]], ["a", "b"], [0, 1, 2]).endswith("Rank 2 has the weights of the majority.")


def test_a_difference_that_is_gone_when_it_is_looked_for_is_told():
    text = describe([[1, 2, 3]] * 2, NAMES, [0, 1])
    assert text.startswith("weights of ranks 0 and 1 differed, but were equal when compared again one by one")


@given(
    hashes=st.integers(1, 4).flatmap(
        lambda size: st.lists(st.lists(st.integers(0, 2), min_size=size, max_size=size), min_size=2, max_size=6)
    )
)
def test_whatever_differs_is_told_in_one_sentence_or_two(hashes):
    names = [f"weight {number}" for number in range(len(hashes[0]))]
    text = describe(hashes, names, list(range(len(hashes))))
    for name, column in zip(names, zip(*hashes, strict=True), strict=True):
        assert (name in text) == (len(set(column)) > 1)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_gather_right_before_the_comparison_is_told_at_the_start(make, monkeypatch, overlaps):
    monkeypatch.setattr(replicas.groups, "data_parallel_group", lambda: None)
    monkeypatch.setattr(replicas.groups, "expert_data_parallel_group", lambda: None)
    zero = ("parallel={use_distributed_optimizer: true, overlap_grad_reduce: true, overlap_param_gather: true}",)
    recipe, notes = make("train.check_replicas_interval=5", *zero * overlaps), []
    meter = SimpleNamespace(logger=SimpleNamespace(note=notes.append), interval=None)
    length = SimpleNamespace(layout=lay_out(recipe, 2))
    training = SimpleNamespace(recipe=recipe, engine=None, progress=Progress(), meter=meter, length=length)
    assert ReplicaCheck.of(training, None) is not None
    assert [("gathers the weights again right before they are compared" in note) for note in notes] == [True] * overlaps


class Replicas(ReplicaCheck):
    """A check whose comparisons have these results."""

    def __init__(self, *found, progress=None, saving=None):
        meter = SimpleNamespace(interval=None)
        training = SimpleNamespace(engine=None, progress=progress or Progress(), meter=meter)
        super().__init__(training, None, every=10, saving=saving)
        self.found = iter(found)

    def _difference(self):
        return next(self.found)


@pytest.mark.usefixtures("alone")
def test_a_comparison_that_a_rollback_has_taken_back_is_not_named():
    progress = Progress()
    check = Replicas(None, None, None, "rank 1 in a.", progress=progress)
    check.compare(10)
    saved = Progress.from_mapping(progress.to_mapping())
    for iteration in (20, 30):
        check.compare(iteration)
    progress.go_back(saved)
    with pytest.raises(TrainingError, match=r"Found after iteration 20\. They were equal after iteration 10: "):
        check.compare(20)


@pytest.mark.usefixtures("alone")
def test_a_run_that_is_resumed_knows_when_its_replicas_were_equal():
    before = Progress(iteration=10)
    Replicas(None, progress=before).compare(10)
    resumed = Progress.from_mapping(before.to_mapping())
    with pytest.raises(TrainingError, match=r"Found after iteration 20\. They were equal after iteration 10: "):
        Replicas("rank 1 in a.", progress=resumed).compare(20)


@pytest.mark.usefixtures("alone")
def test_without_an_equal_comparison_it_is_said():
    with pytest.raises(TrainingError, match="They were not compared before: start again from a checkpoint that you"):
        Replicas("rank 1 in a.").compare(20)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("equal_at", "mark"), [(10, "replicas differed after 10"), (None, "replicas differed")])
def test_no_run_goes_on_by_itself_from_a_checkpoint_after_the_last_equal_comparison(tmp_path, equal_at, mark):
    saving = saved_at(tmp_path, 10, 15)
    progress = Progress(iteration=20, equal_at=equal_at)
    with pytest.raises(TrainingError, match="may contain the fault: --resume refuses it until you"):
        Replicas("rank 1 in a.", progress=progress, saving=saving).compare(20)
    asked = "Write one of these iterations into it: 10, 15"
    with pytest.raises(CheckpointError, match=rf"holds '{mark}', not an iteration\.\n{asked}"):
        saving.folder.latest()


@pytest.mark.usefixtures("alone")
def test_a_checkpoint_up_to_the_last_equal_comparison_is_gone_on_from(tmp_path):
    saving = saved_at(tmp_path, 10)
    with pytest.raises(TrainingError) as raised:
        Replicas("rank 1 in a.", progress=Progress(equal_at=10), saving=saving).compare(20)
    assert "refuses" not in str(raised.value)
    assert saving.folder.latest() == 10


@contextmanager
def noting(folder, iterations):
    try:
        yield
    finally:
        iterations += folder.iterations()


class Beside:
    """A checkpoint that is being written beside the steps, and complete when the run has waited for it."""

    def __init__(self, folder, iteration):
        self.folder, self.iteration = folder, iteration

    def finish(self):
        self.folder.save(self.iteration, lambda _folder: None, is_main=True, barrier=lambda: None)


@pytest.mark.usefixtures("alone")
def test_nor_from_one_that_is_still_being_written_for_which_the_error_does_not_wait(tmp_path):
    saving = saved_at(tmp_path, 10)
    saving.background, saving.latest = Beside(saving.folder, 15), 15
    check, at_the_error = Replicas("rank 1 in a.", progress=Progress(equal_at=10), saving=saving), []
    with pytest.raises(TrainingError, match="may contain the fault"), saving, noting(saving.folder, at_the_error):
        check.compare(20)
    assert (at_the_error, saving.folder.iterations()) == ([10], [10, 15])
    with pytest.raises(CheckpointError, match="holds 'replicas differed after 10', not an iteration"):
        saving.folder.latest()


@pytest.mark.usefixtures("alone")
def test_one_that_was_begun_and_never_became_complete_leaves_the_trusted_one(tmp_path):
    saving = saved_at(tmp_path, 10)
    saving.latest = 15
    with pytest.raises(TrainingError), saving:
        Replicas("rank 1 in a.", progress=Progress(equal_at=10), saving=saving).compare(20)
    assert saving.folder.latest() == 10


@pytest.mark.usefixtures("alone")
def test_a_folder_that_cannot_be_written_does_not_hide_which_rank_differs(tmp_path, monkeypatch):
    saving = saved_at(tmp_path, 15)

    def fails(_folder, _reason):
        raise CheckpointError("latest_checkpointed_iteration.txt cannot be written: Input/output error")

    monkeypatch.setattr(CheckpointFolder, "name_none", fails)
    with pytest.raises(
        TrainingError, match=r"rank 1 in a(?s:.)*after iteration 10 may contain the fault: do not resume"
    ):
        Replicas("rank 1 in a.", progress=Progress(equal_at=10), saving=saving).compare(20)


def saved_at(folder, *iterations):
    saving = Saving(CheckpointFolder(folder), rank=0)
    for iteration in iterations:
        saving.folder.save(iteration, lambda _folder: None, is_main=True, barrier=lambda: None)
        saving.mark_loaded(Progress(iteration=iteration))
    return saving


@pytest.mark.parametrize("hashes", [[[1], [1], [2], [2]], [[1], [2], [3], [3]]])
def test_half_of_the_replicas_are_no_majority(hashes):
    assert describe(hashes, ["weight"], [0, 1, 2, 3]).startswith("the replicas of ranks 0, 1, 2 and 3 do not hold")


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = st.integers(min_value=1, max_value=40)


def weights(size, dtype, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def flipped(weight, element, bit):
    """Return a copy of a weight with one bit of one element the other way."""
    words = weight.clone().view(torch.int32 if weight.element_size() == 4 else torch.int16)
    mask = 1 << bit
    words[element] ^= mask if bit < 8 * weight.element_size() - 1 else -mask
    return words.view(weight.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_of_every_position_counts(dtype):
    weight = weights(9, dtype)
    bits = 8 * weight.element_size()
    hashes = [WeightHash().one(flipped(weight, element, bit)).item() for element in range(9) for bit in range(bits)]
    assert len({*hashes, WeightHash().one(weight).item()}) == 9 * bits + 1


@given(sizes=st.lists(SIZES, min_size=1, max_size=5), dtype=st.sampled_from(DTYPES), data=st.data())
def test_equal_weights_are_equal_and_one_bit_is_not_however_they_are_divided(sizes, dtype, data):
    bucket = data.draw(st.integers(min_value=1, max_value=64), label="bytes of a bucket")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas, "BUCKET", bucket)
        ours = [weights(size, dtype, seed) for seed, size in enumerate(sizes)]
        theirs = [weight.clone() for weight in ours]
        assert torch.equal(WeightHash().buckets(ours), WeightHash().buckets(theirs))
        which = data.draw(st.integers(min_value=0, max_value=len(sizes) - 1), label="weight")
        element = data.draw(st.integers(min_value=0, max_value=sizes[which] - 1), label="element")
        bit = data.draw(st.integers(min_value=0, max_value=8 * dtype.itemsize - 1), label="bit")
        theirs[which] = flipped(theirs[which], element, bit)
        assert (WeightHash().buckets(ours) != WeightHash().buckets(theirs)).sum() == 1


def test_two_values_that_change_places_have_another_hash():
    weight = torch.tensor([1.0, 2.0, 3.0])
    assert WeightHash().one(weight) != WeightHash().one(weight[[1, 0, 2]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_buckets_of_one_weight_that_change_places_have_another_hash(dtype, monkeypatch):
    monkeypatch.setattr(replicas, "BUCKET", 16)
    first, other = torch.split(weights(32 // dtype.itemsize, dtype), 16 // dtype.itemsize)
    assert WeightHash().one(torch.cat((first, other))) != WeightHash().one(torch.cat((other, first)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bucket_is_measured_in_bytes(dtype, monkeypatch):
    monkeypatch.setattr(replicas, "BUCKET", 64)
    assert WeightHash().buckets([weights(64, dtype)]).shape == (dtype.itemsize,)


def test_zeros_and_negative_zeros_differ():
    assert WeightHash().one(torch.zeros(4)) != WeightHash().one(-torch.zeros(4))


def test_the_multipliers_are_odd_and_differ():
    numbers = multipliers(5000, torch.device("cpu"))
    assert (numbers % 2 != 0).all()
    assert len(numbers.unique()) == 5000


def test_views_of_a_flat_buffer_are_read_where_they_begin():
    flat = weights(64, torch.bfloat16)
    assert WeightHash().one(flat[3:40]) == WeightHash().one(flat[3:40].clone())


def test_weights_of_several_dtypes_have_buckets_of_their_own():
    mixed = [weights(3, torch.bfloat16), weights(3, torch.float32), weights(2, torch.float32)]
    assert WeightHash().buckets(mixed).shape == (2,)


@pytest.mark.full
@pytest.mark.ranks
def test_ranks_with_equal_experts_are_compared(tmp_path):
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    run_ranks(
        "training.safeguards.expert_replicas",
        tmp_path,
        folder=tmp_path,
        world_size=2,
        variables=lambda rank: {**world, "RANK": str(rank)},
    )
    before, after = json.loads((tmp_path / "found.json").read_text())
    assert before is None
    assert "mlp.experts.linear_fc2.weight (layer 2 of 2)" in after
    assert "ranks 0 and 1" in after
