"""The index files of `data.index: megatron`: megatron-core's arrays, and nothing left of what could not be written."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pretrain.data.samples import Samples
from pretrain.data.tokenizers import load_tokenizer
from pretrain.errors import DataError

pytestmark = pytest.mark.usefixtures("bridged")


def built(recipe, samples):
    from pretrain.data.datasets import build_datasets

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

    from pretrain.data.megatron_index import MegatronOrder

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


def test_nothing_of_an_index_stays_that_could_not_be_written(small_recipe, tmp_path, monkeypatch):
    """Nor of one that a killed run has left."""
    folder = tmp_path / "indices"
    recipe = small_recipe(f"data.cache_path={folder}")

    def disk_full(file, array):
        file.write_bytes(b"some")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(np, "save", disk_full)
        with pytest.raises(DataError, match="cannot be written"):
            built(recipe, Samples(train=8))
    assert list(folder.iterdir()) == []
    built(recipe, Samples(train=8))
    left = next(folder.glob("*document_index.npy"))
    left.with_name(f".{left.name}.7.partial.npy").write_bytes(b"of a killed run")
    left.unlink()
    built(recipe, Samples(train=8))
    assert not list(folder.glob(".*"))
