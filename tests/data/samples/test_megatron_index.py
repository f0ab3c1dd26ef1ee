"""The index files of `data.index: megatron`: megatron-core's arrays, and nothing left of what could not be written."""

import json
import os
import time
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pretrain.data.needed import SampleCounts
from pretrain.data.tokenizers import load_tokenizer
from pretrain.errors import DataError

pytestmark = pytest.mark.usefixtures("bridged")


def built(recipe, samples):
    from pretrain.data.samples.datasets import build_datasets

    return build_datasets(recipe, load_tokenizer(recipe.tokenizer), samples)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    samples=st.integers(1, 60),
    seq_length=st.integers(1, 8),
    seed=st.integers(0, 5),
)
def test_the_arrays_are_those_of_megatron_core(lengths, samples, seq_length, seed):
    """Whatever the documents, the epochs, and whether the last one is shuffled apart."""
    from megatron.core.datasets.gpt_dataset import GPTDataset
    from megatron.core.datasets.utils import Split

    from pretrain.data.samples.megatron_order import MegatronOrder

    lengths = np.array([3, *lengths, 2], np.int32)
    documents = range(1, lengths.size - 1)
    assume(lengths[1:-1].sum() > seq_length)
    theirs = GPTDataset.__new__(GPTDataset)
    theirs.__dict__ |= {
        "indices": np.arange(documents.start, documents.stop, dtype=np.int32),
        "num_samples": samples,
        "index_split": Split.train,
        "unique_description_hash": "",
        "dataset": SimpleNamespace(sequence_lengths=lengths, path_prefix=""),
        "config": SimpleNamespace(
            defer_npy_index_mmap=False,
            path_to_cache=None,
            mock=True,
            sequence_length=seq_length,
            add_extra_token_to_sequence=True,
            random_seed=seed,
        ),
    }
    ours = MegatronOrder(lengths=lengths, documents=documents, num_samples=samples, seq_length=seq_length, seed=seed)
    for (name, array), their_array in zip(ours.arrays(), theirs._build_document_sample_shuffle_indices(), strict=True):
        assert (name, array.dtype, array.tolist()) == (name, their_array.dtype, their_array.tolist())


class TestWriting:
    @pytest.fixture
    def folder(self, tmp_path):
        return tmp_path / "indices"

    @pytest.fixture
    def make(self, small_recipe, token_files, folder):
        """Return a recipe, of which everything is written to `folder`."""
        parts = json.dumps([{"weight": weight, "path": str(token_files)} for weight in (1, 2)])
        blend = ["data.path=null", f"data.blend={parts}"]
        return lambda *, blended: small_recipe(f"data.cache_path={folder}", *(blend if blended else ()))

    @pytest.fixture
    def recipe(self, make):
        return make(blended=False)

    def test_nothing_stays_of_an_index_that_could_not_be_written(self, recipe, folder, monkeypatch):
        def disk_full(file, array):
            file.write(b"some")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(np, "save", disk_full)
        with pytest.raises(DataError, match="cannot be written"):
            built(recipe, SampleCounts(train=8))
        assert list(folder.iterdir()) == []

    def test_temporary_files_of_killed_runs_are_removed_after_a_day(self, recipe, folder):
        built(recipe, SampleCounts(train=8))
        index = next(folder.glob("*document_index.npy"))
        fresh, old = (index.with_name(f".{index.name}.{host}.7.partial") for host in ("other", "killed"))
        fresh.write_bytes(b"of a run that writes now")
        old.write_bytes(b"of a run that was killed")
        os.utime(old, (time.time() - 90_000,) * 2)
        index.unlink()
        built(recipe, SampleCounts(train=8))
        assert list(folder.glob(".*")) == [fresh]

    @pytest.mark.parametrize("blended", [False, True])
    def test_of_two_runs_that_begin_together_both_find_their_index(self, make, folder, monkeypatch, blended):
        """When this one has written a file that has no name yet, the other begins, writes the same and ends."""
        recipe = make(blended=blended)
        save, others = np.save, []

        def interrupted(file, array):
            save(file, array)
            if not others:
                others.append(None)
                with monkeypatch.context() as elsewhere:
                    elsewhere.setattr(os, "getpid", lambda: 7)
                    others[0] = built(recipe, SampleCounts(train=80)).train

        monkeypatch.setattr(np, "save", interrupted)
        ours = built(recipe, SampleCounts(train=80)).train
        assert [ours[i]["tokens"].tolist() for i in range(80)] == [others[0][i]["tokens"].tolist() for i in range(80)]
        assert not list(folder.glob(".*"))

    @pytest.mark.parametrize("blended", [False, True])
    def test_an_index_that_is_mapped_is_not_written_into(self, make, folder, blended):
        """A run that finds one file of it missing makes new ones: the old ones may be in use."""
        recipe = make(blended=blended)
        built(recipe, SampleCounts(train=80))
        with ExitStack() as kept:  # so that no inode is given again
            arrays = {file: os.fstat(kept.enter_context(file.open()).fileno()).st_ino for file in folder.glob("*.npy")}
            for description in folder.glob("*.txt"):
                description.unlink()
            built(recipe, SampleCounts(train=80))
            assert len(arrays) == (8 if blended else 3)
            assert not any(file.stat().st_ino == inode for file, inode in arrays.items())
