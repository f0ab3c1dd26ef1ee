"""Files of ZeRO are read as DeepSpeed reads them itself: bit by bit, and not where some are missing."""

from __future__ import annotations

import argparse
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.formats import deepspeed
from pretrain.tools.convert.formats.deepspeed_weights import rounded_to
from pretrain.tools.convert.lazy_tensor import in_memory
from rank_programs import run_ranks
from tools.convert.formats import zero_ranks
from tools.convert.formats.hugging_face_models import GPT2, NO_DROPOUT, logits_of, random_model, require_equal
from tools.convert.formats.megatron_deepspeed import OF_GPT2, by_ours, rank_of_gpt2, save
from tools.convert.formats.own_models import our_logits

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def zero(tmp_path_factory):
    """Checkpoints of two ranks that DeepSpeed has written, in all stages."""
    folder = tmp_path_factory.mktemp("zero")
    run_ranks(
        "tools.convert.formats.zero_ranks",
        folder,
        folder=folder,
        world_size=2,
        variables=lambda rank: {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
    )
    return folder


@pytest.fixture
def copied(zero, tmp_path):
    """Return a checkpoint's folder, which the test may change."""

    def copy(name):
        return Path(shutil.copytree(zero / name / "global_step2", tmp_path / name))

    return copy


@pytest.mark.full
@pytest.mark.parametrize("name", zero_ranks.CASES)
def test_the_optimizers_fp32_weights_are_read_bit_by_bit(zero, name):
    weights = deepspeed.read(zero / name / "global_step2", {})
    told = torch.load(zero / f"{name}.pt")
    require_equal({each: weights.tensors[each] for each in by_ours(told)}, by_ours(told))
    assert len(told) == len(zero_ranks.shapes()) - (name in {"stage 2", "stage 3"})  # without the frozen one
    assert (weights.iteration, weights.consumed_samples, weights.vocab_size) == (2, 64, zero_ranks.VOCAB - 1)


@pytest.mark.full
@pytest.mark.parametrize("name", ["stage 1 fp16", "stage 2", "stage 3"])
def test_deepspeeds_own_script_reads_the_same(zero, name, capfd):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    theirs = get_fp32_state_dict_from_zero_checkpoint(str(zero / name))
    require_equal(deepspeed.read(zero / name / "global_step2", {}).tensors, by_ours(theirs))


@pytest.mark.full
@pytest.mark.parametrize("name", ["stage 1 fp16", "stage 1 bf16", "stage 2"])
def test_shards_that_were_exchanged_are_found_by_the_models_own_copy(copied, name):
    folder = copied(name)
    one, other = sorted(folder.glob("*_optim_states.pt"))
    one.rename(folder / "spare")
    other.rename(one)
    (folder / "spare").rename(other)
    weights = deepspeed.read(folder, {})
    with pytest.raises(
        DamageError, match=r"word_embeddings.weight of .*mp_rank_00_model_states.pt differs from its fp32 weight"
    ):
        weights.tensors["embedding.word_embeddings.weight"].whole()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_copy_may_differ_by_one_rounding(dtype):
    """Numbers that fp16 cannot hold are infinite in the copy; two steps of the copy's dtype are damage."""
    exact = torch.tensor([[1.0, -3e-7, 7e4, 0.0, float("nan")], [0.1, 1e-9, -2.5, 1 / 3, float("inf")]])
    copy = exact.to(dtype)
    assert torch.equal(rounded_to(in_memory(exact), in_memory(copy), "w").whole().nan_to_num(), exact.nan_to_num())
    copy[1, 3] *= 1 + 3 * torch.finfo(dtype).eps
    with pytest.raises(DamageError, match="w differs from its fp32 weight"):
        rounded_to(in_memory(exact), in_memory(copy), "w").rows(1, 2)


def test_tensor_parallel_ranks_have_shards_of_their_own(tmp_path):
    """Two ranks of each kind; the model is in bf16, and the fp32 weights are in the shards."""
    model = random_model(transformers.GPT2Config(**GPT2, **NO_DROPOUT))
    parts = [rank_of_gpt2(model, rank, 2, "heads") for rank in range(2)]
    halved = [{name: tensor.bfloat16() for name, tensor in part.items()} for part in parts]
    shapes = [{name: parts[0][name].shape for name in names} for names in groups_of(parts[0])]
    client = {"checkpoint_version": 3.0, "param_shapes": shapes, "dp_world_size": 2}
    save(tmp_path, halved, OF_GPT2, **client)
    for rank, part in enumerate(parts):
        flat = [torch.cat([part[name].flatten() for name in names]) for names in groups_of(part)]
        for data in range(2):
            state = {"zero_stage": 1, "partition_count": [2, 2], "ds_version": "0.9.2"}
            state["single_partition_of_fp32_groups"] = [group.tensor_split(2)[data] for group in flat]
            file = tmp_path / f"bf16_zero_pp_rank_{data}_mp_rank_{rank:02d}_optim_states.pt"
            torch.save({"optimizer_state_dict": state}, file)
    torch.testing.assert_close(our_logits(deepspeed.read(tmp_path, {})), logits_of(model), rtol=0, atol=1e-5)
    (tmp_path / "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt").unlink()
    with pytest.raises(CheckpointError, match="1 of 4 ranks: zero_pp_rank_0_mp_rank_01"):
        deepspeed.read(tmp_path, {})


def groups_of(part):
    """Return the names of Megatron's two groups of parameters, with weight decay and without."""
    return [[name for name, tensor in part.items() if (tensor.dim() == 2) is decays] for decays in (True, False)]


@pytest.fixture(scope="module")
def universal(zero, tmp_path_factory):
    """What ds_to_universal.py of DeepSpeed makes of checkpoints, by their names."""
    from deepspeed.checkpoint import ds_to_universal

    folder = tmp_path_factory.mktemp("universal")
    for name in ("stage 2", "stage 3"):
        options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": False}
        before, after = zero / name / "global_step2", folder / name
        folders = {"input_folder": str(before), "output_folder": str(after)}
        ds_to_universal.main(argparse.Namespace(**folders, **options, inject_missing_state=False))
    return folder


@pytest.mark.full
@pytest.mark.parametrize("name", ["stage 2", "stage 3"])
def test_universal_checkpoints_of_deepspeed_are_read(zero, universal, name, tmp_path):
    before, folder = deepspeed.read(zero / name / "global_step2", {}), universal / name
    frozen = "embedding.position_embeddings.weight"
    if name == "stage 3":
        with pytest.raises(CheckpointError, match=f"no {frozen}"):  # ds_to_universal.py loses what was not trained
            deepspeed.read(folder, {})
        folder = shutil.copytree(folder, tmp_path / name)
        (folder / "zero" / zero_ranks.FROZEN).mkdir()
        torch.save(before.tensors[frozen].whole(), folder / "zero" / zero_ranks.FROZEN / "fp32.pt")
    after = deepspeed.read(folder, {})
    assert (after.format, after.model, after.vocab_size) == ("DeepSpeed, universal", before.model, before.vocab_size)
    require_equal(dict(after.tensors) | {frozen: before.tensors[frozen]}, before.tensors)


@pytest.mark.full
def test_a_universal_checkpoint_that_lacks_a_weight_is_refused(universal, tmp_path):
    folder = shutil.copytree(universal / "stage 2", tmp_path / "universal")
    name = "language_model.encoder.layers.1.mlp.dense_4h_to_h.bias"
    shutil.rmtree(folder / "zero" / name)
    with pytest.raises(CheckpointError, match=re.escape(f"lacks the folders of 1 weight: {name}.\nCopy")):
        deepspeed.read(folder, {})


@pytest.mark.full
def test_without_the_optimizer_the_16_bit_weights_are_read(copied):
    folder = copied("stage 2")
    whole = {name: tensor.whole() for name, tensor in deepspeed.read(folder, {}).tensors.items()}
    for file in folder.glob("*optim_states.pt"):
        file.unlink()
    rounded = deepspeed.read(folder, {}).tensors
    require_equal(rounded, {name: in_memory(tensor.bfloat16()) for name, tensor in whole.items()})


@pytest.mark.full
def test_zero_3_without_its_optimizer_has_no_weights(copied):
    folder = copied("stage 3")
    for file in folder.glob("*optim_states.pt"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"lacks \*zero_pp_rank_\*_optim_states.pt, in which ZeRO-3 keeps"):
        deepspeed.read(folder, {})


@pytest.mark.full
@pytest.mark.parametrize("name", ["stage 1 bf16", "stage 2", "stage 3"])
def test_the_last_ranks_lost_shard_is_noticed(copied, name):
    folder = copied(name)
    for file in folder.glob("*zero_pp_rank_1_*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"dp_world_size|1 of 2 data-parallel ranks"):
        deepspeed.read(folder, {})


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda state: state.pop("single_partition_of_fp32_groups"), DamageError, "lacks ZeRO's fp32 weights"),
        (lambda state: state.update(partition_count=3), CheckpointError, "of 2 of 3 data-parallel ranks"),
        (lambda state: state.update(partition_count=[2, 1]), CheckpointError, "mixture-of-experts"),
        (lambda state: state["single_partition_of_fp32_groups"].pop(), CheckpointError, "of different trainings"),
        (
            lambda state: state["single_partition_of_fp32_groups"].__setitem__(0, torch.zeros(3)),
            DamageError,
            "fp32 numbers for a group of",
        ),
    ],
    ids=["no weights", "another world", "experts", "groups", "sizes"],
)
def test_shards_that_do_not_add_up_are_refused(copied, change, error, says):
    folder = copied("stage 2")
    file = folder / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    state = torch.load(file, weights_only=False)
    change(state["optimizer_state_dict"])
    torch.save(state, file)
    with pytest.raises(error, match=says):
        deepspeed.read(folder, {})


@pytest.mark.full
def test_a_shard_that_is_cut_off_is_damage(copied):
    folder = copied("stage 2")
    file = folder / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DamageError, match=re.escape(file.name)):
        deepspeed.read(folder, {})


@pytest.mark.full
def test_a_row_of_a_weight_is_read_without_the_rest_once_its_record_is_verified(zero, monkeypatch):
    weights = deepspeed.read(zero / "stage 3" / "global_step2", {})
    weights.tensors["decoder.layers.0.mlp.linear_fc2.weight"].rows(0, 8)
    sizes, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: sizes.append(preadv(*args)) or sizes[-1])
    weights.tensors["decoder.layers.0.mlp.linear_fc2.weight"].rows(3, 8)  # half of them on each rank
    assert (len(sizes), sum(sizes)) == (2, 5 * zero_ranks.FFN * 4)
