"""Differences that are no kernel's, and recordings that cannot be compared."""

import json
import shutil
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from engine.layouts import ACCUMULATED
from pretrain.errors import RunError
from pretrain.tools.align.comparing import parameters as parameters_module
from pretrain.tools.align.comparing.outcome import FORWARD
from pretrain.tools.align.comparing.parameters import Parameters, StoredTensors
from pretrain.tools.align.comparing.recording import Recording
from pretrain.tools.align.outcome_views import headline, outcome_text
from pretrain.tools.align.recording.folder import FORMAT
from tools.align.recorded import QKV, change_tensor, outcome_of, record


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """A recording."""
    return record(tmp_path_factory.mktemp("usual") / "recording")


@pytest.fixture
def copy(usual, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(usual, tmp_path / "copy")


def test_a_recording_is_aligned_with_itself(usual):
    outcome = outcome_of(usual, usual)

    assert outcome.is_aligned
    assert {each.difference for each in outcome.compared} == {0.0}


@pytest.mark.full
def test_a_difference_between_kernels_is_not_blamed_on_one(usual, copy):
    change_tensor(copy, lambda x: 1.001 * x, **QKV)

    outcome = outcome_of(usual, copy)

    assert outcome.cause is None
    assert (outcome.first.place.position, outcome.first.order[1]) == (2, FORWARD)
    assert outcome.first.what == "output of linear in self_attention.linear_qkv"
    lines = headline(outcome, [Recording.open(usual), Recording.open(copy)])
    assert lines[0].startswith(
        "differs at step 1, layer 2 of 4, forward: output of linear in self_attention.linear_qkv"
    )
    assert "every kernel agrees with float64" in lines[1]


@pytest.mark.full
def test_one_wrong_token_is_seen(usual, copy):
    def one_token(x):
        x[5, 1] += 1e-4
        return x

    change_tensor(copy, one_token, **QKV)

    outcome = outcome_of(usual, copy)

    assert outcome.first.what.endswith("linear_qkv, worst token")


@pytest.mark.full
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_number_that_is_not_finite_differs(usual, copy, number):
    change_tensor(copy, lambda x: x.fill_(number), **QKV)

    assert outcome_of(usual, copy).first.difference == float("inf")


def edit(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.full
def test_kernels_and_versions_of_both_sides_are_shown(usual, copy):
    def rename(manifest):
        manifest["torch"] = "9.9"
        row = next(row for row in manifest["kernels"]["rows"] if row["operation"] == "norm")
        row["kernel"] = "other"

    edit(copy / "recording.json", rename)

    text = outcome_text(outcome_of(usual, copy), [Recording.open(usual), Recording.open(copy)])

    assert [line.rpartition(", torch ")[2] for line in text.splitlines()[:2]] == [torch.__version__, "9.9"]
    norm = next(line for line in text.splitlines() if line.startswith("norm"))
    assert "'other' of" in norm
    assert "the same" in next(line for line in text.splitlines() if line.startswith("linear"))


def test_other_samples_are_an_error_that_names_the_first(usual, copy):
    edit(copy / "rank0" / "rank.json", lambda rank: rank["samples"].update({"1.3": 0}))

    with pytest.raises(RunError, match="different text, first in step 1, sample 3"):
        outcome_of(usual, copy)


@pytest.mark.full
@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.num_layers=2", "model.num_layers 4 and 2"),
        ("train.global_batch_size=4", "train.global_batch_size 8 and 4"),
    ],
)
def test_other_trainings_are_an_error_that_names_the_key(usual, tmp_path, override, named):
    other = record(tmp_path / "other", override)

    with pytest.raises(RunError, match=named):
        outcome_of(usual, other)


@pytest.mark.full
def test_other_weights_are_an_error_that_names_them(usual, tmp_path):
    other = record(tmp_path / "other", "model.init_method_std=0.03")
    edit(other / "recording.json", lambda manifest: manifest["recipe"]["model"].update(init_method_std=0.02))

    with pytest.raises(RunError, match=r"start from different weights: .* and \d+ more"):
        outcome_of(usual, other)


def test_a_folder_without_a_recording_is_an_error(tmp_path):
    with pytest.raises(RunError, match="is not a recording"):
        Recording.open(tmp_path)


def test_a_recording_that_was_interrupted_is_an_error(copy):
    (copy / "rank0" / "rank.json").unlink()

    with pytest.raises(RunError, match="is incomplete"):
        Recording.open(copy)


@pytest.mark.parametrize("pattern", ["rank0/points.jsonl", "rank0/tensors0.safetensors", "weights/step1/*.distcp"])
def test_a_file_that_was_copied_in_part_is_an_error_that_names_it(copy, pattern):
    file = next(copy.glob(pattern))
    file.write_bytes(file.read_bytes()[:-1])

    with pytest.raises(RunError, match=f"{file.relative_to(copy)} is missing or truncated"):
        Recording.open(copy)


def test_ranks_that_read_different_text_for_one_sample_are_an_error(usual):
    recording = Recording.open(usual)
    other = replace(recording, ranks=[*recording.ranks, {"context": {"rank": 0, "size": 1}, "samples": {"1.3": 0}}])

    with pytest.raises(RunError, match="different text for sample 3 of step 1"):
        _ = other.samples


@pytest.mark.full
def test_an_update_that_both_sides_skipped_is_said(usual, copy):
    def skip(rank):
        rank["steps"][0]["skipped"] = True

    edit(copy / "rank0" / "rank.json", skip)

    outcome = outcome_of(copy, copy)

    lines = headline(outcome, [Recording.open(copy)] * 2)
    assert lines[-1] == "step 1: both sides skipped the update; lower precision.loss_scale"


@pytest.mark.full
def test_another_learning_rate_differs_before_the_updates(usual, copy):
    edit(copy / "rank0" / "rank.json", lambda rank: rank["steps"][0].update(learning_rate=1.0))

    for sides in ((usual, copy), (copy, usual)):
        outcome = outcome_of(*sides)

        assert (outcome.first.phase, outcome.first.what) == ("update", "learning rate")
        assert outcome.cause.what.startswith("update of ")


@pytest.mark.full
def test_a_difference_in_a_call_that_is_not_checked_is_said(tmp_path):
    usual = record(tmp_path / "usual", *ACCUMULATED)
    copy = shutil.copytree(usual, tmp_path / "copy")
    change_tensor(copy, lambda x: 1.01 * x, micro_batch=1, **QKV)

    lines = headline(outcome_of(usual, copy), [Recording.open(usual), Recording.open(copy)])

    assert lines[1].startswith("  this call was not checked against float64: it is in micro-batch 2 of the first side")


def of(parameters, name, which):
    """Return a weight after the step, or a moment of it."""
    return parameters.moment(which, name, 1) if which else parameters.weight(name, 1)


def test_a_large_checkpoint_is_read_layer_by_layer_and_each_tensor_once(usual, monkeypatch):
    small = Parameters(Recording.open(usual))
    wanted = {(name, which): of(small, name, which) for name in small.names for which in (None, "exp_avg")}
    monkeypatch.setattr(parameters_module, "AT_ONCE", 0)
    read, reading = [], StoredTensors._read_one
    monkeypatch.setattr(StoredTensors, "_read_one", lambda *each: (read.append(each[1:]), reading(*each))[1])
    large = Parameters(Recording.open(usual))

    for _ in range(2):
        assert torch.equal(large.weight(large.names[0], 1), wanted[large.names[0], None])
    assert all(torch.equal(of(large, *what), tensor) for what, tensor in wanted.items())

    assert len(read) == len(set(read)) == 2 * len(large.names)
    assert {place for key, place in read if key == "decoder.layers.mlp.linear_fc1.weight"} == {0, 1, 2, 3}


@pytest.mark.full
def test_the_states_of_two_steps_are_kept(usual):
    recording = Recording.open(usual)
    step = deepcopy(recording.ranks[0])
    for number in (2, 3):
        shutil.copytree(usual / "weights" / "step1", usual.parent / "steps" / "weights" / f"step{number}")
    for number in (0, 1):
        shutil.copytree(usual / "weights" / f"step{number}", usual.parent / "steps" / "weights" / f"step{number}")
    step["steps"] *= 3
    parameters = Parameters(replace(recording, folder=usual.parent / "steps", ranks=[step]))

    for number in range(4):
        parameters.weight(parameters.names[0], number)

    assert [bool(each._kept) for each in parameters._steps] == [False, False, True, True]


def test_a_recording_of_another_format_is_an_error(copy):
    edit(copy / "recording.json", lambda manifest: manifest.update(format=99))

    with pytest.raises(RunError, match="format 99"):
        Recording.open(copy)


@pytest.mark.parametrize(
    ("text", "message"), [("{}", "is not a recording"), (f'{{"format": {FORMAT}}}', "lacks pretrain, torch")]
)
def test_a_description_that_is_damaged_is_an_error(tmp_path, text, message):
    (tmp_path / "recording.json").write_text(text)

    with pytest.raises(RunError, match=message):
        Recording.open(tmp_path)
