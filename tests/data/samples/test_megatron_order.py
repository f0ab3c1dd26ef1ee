"""The index files of `data.index: megatron`: megatron-core's arrays, and nothing left of what could not be written."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.needed import SampleCounts
from pretrain.data.samples.megatron_order import MegatronOrder, order_of, require_same_order
from pretrain.data.token_files.reading import TokenFile
from pretrain.data.tokenizers import load_tokenizer
from pretrain.errors import DataError
from pretrain.recipe import make_recipe
from pretrain.recipe.sections.data import TokenizerSection
from pretrain.tools.corpus.build import build_tokens
from recipe.smallest import SMALLEST

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
    their_arrays = theirs._build_document_sample_shuffle_indices()
    for name, array, their_array in zip(INDICES, ours.arrays(), their_arrays, strict=True):
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


SEQ_LENGTH = SMALLEST["model"]["seq_length"]
SPLIT = "60,30,10"
SPLITS = ("train", "valid", "test")
INDICES = ("document_index", "sample_index", "shuffle_index")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Prefixes of token files of which an epoch has few samples, and each another number."""
    folder = tmp_path_factory.mktemp("parts")
    prefixes = [folder / str(number) for number in range(6)]
    for number, prefix in enumerate(prefixes):
        texts = DOCUMENTS[40 * number :][: 25 + 9 * number]
        corpus = write_jsonl(folder / f"{number}.jsonl", [text[: 3 * SEQ_LENGTH] for text in texts])
        build_tokens([corpus], prefix, TokenizerSection(type="bytes"), append_eod=True)
    return [str(prefix) for prefix in prefixes]


def ours(files, weights, needed, folder):
    from pretrain.data.samples.datasets import build_datasets

    parts = [{"weight": weight, "path": path} for path, weight in zip(files, weights, strict=False)]
    recipe = make_recipe(SMALLEST | {"data": {"blend": parts, "split": SPLIT, "cache_path": str(folder)}})
    samples = SampleCounts(**dict(zip(SPLITS, needed, strict=True)))
    datasets = build_datasets(recipe, load_tokenizer(recipe.tokenizer), samples)
    return [getattr(datasets, name) for name in SPLITS]


def megatrons(files, weights, needed):
    """The same arguments given to megatron-core itself."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    from pretrain.data.samples.datasets import _TokenizerFacts

    config = GPTDatasetConfig(
        random_seed=make_recipe(SMALLEST).train.seed,
        sequence_length=SEQ_LENGTH,
        blend=(files[: len(weights)], list(weights)),
        split=SPLIT,
        path_to_cache=None,  # without ranks a blend has none
        tokenizer=_TokenizerFacts(257, 256, {}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, list(needed), lambda: True, config).build()


@given(
    weights=st.lists(st.floats(0.01, 1), min_size=2, max_size=6),
    needed=st.tuples(st.integers(1, 400), st.integers(1, 40), st.integers(1, 20)),
)
def test_the_samples_are_megatrons(files, tmp_path_factory, weights, needed):
    try:
        theirs = megatrons(files, weights, needed)
    except IndexError:
        assume(False)
    for their_split, our_split in zip(theirs, ours(files, weights, needed, tmp_path_factory.mktemp("c")), strict=True):
        assert our_split.dataset_index.tolist() == their_split.dataset_index.tolist()
        assert our_split.dataset_sample_index.tolist() == their_split.dataset_sample_index.tolist()
        for our_part, their_part in zip(our_split.datasets, their_split.datasets, strict=True):
            for name in INDICES:
                assert np.array_equal(getattr(our_part, name), getattr(their_part, name)), name
        for number in range(0, len(their_split), 1 + len(their_split) // 10):
            assert our_split[number]["tokens"].tolist() == their_split[number]["tokens"].tolist()


@pytest.mark.parametrize(
    ("weights", "train"),
    [
        ([0.76, 0.02, 0.05, 0.04, 0.02], 48),
        ([0.04, 0.69, 0.04, 0.02], 218),
        ([0.04, 0.02, 0.04, 0.91, 0.04, 0.04], 116),
    ],
)
def test_more_is_prepared_where_megatron_refuses(files, tmp_path, weights, train):
    """Of the heavy part it takes one sample more than there are."""
    with pytest.raises(IndexError, match="oversamples the contributing datasets"):
        megatrons(files, weights, (train, 8, 8))
    for split in ours(files, weights, (train, 8, 8), tmp_path):
        taken = np.bincount(split.dataset_index, minlength=len(weights))
        assert (taken <= [len(part) for part in split.datasets]).all()


@given(weights=st.lists(st.floats(0.001, 1), min_size=2, max_size=40), samples=st.integers(1, 2000))
def test_no_part_gives_more_than_its_weight_and_one(weights, samples):
    from megatron.core.datasets.utils import normalize

    from pretrain.data.samples.megatron_order import blending_indices

    weights = normalize(weights)
    taken = np.bincount(blending_indices(weights, samples)[0], minlength=len(weights))
    assert (taken <= np.floor(np.array(weights) * samples) + 1).all()


@pytest.mark.parametrize("prepared", [1, 43, 44, 45, 300])
def test_the_samples_of_a_part_are_counted_before_it_is_built(files, tmp_path, prepared):
    from pretrain.data.samples.megatron_order import _available

    train, *_ = ours(files[:1], [1.0], (prepared, 1, 1), tmp_path)
    assert len(train) == _available(TokenFile.open(files[0]), (0.0, 0.6), prepared, SEQ_LENGTH)


LENGTHS = np.random.default_rng(0).integers(20, 60, 100).astype(np.int32)
EPOCH = (int(LENGTHS.sum()) - 1) // 32


def order(samples):
    """Return the order of so many samples of one file."""
    given = MegatronOrder(lengths=LENGTHS, documents=range(100), num_samples=samples, seq_length=32, seed=1)
    return order_of(SimpleNamespace(**dict(zip(INDICES, given.arrays(), strict=True))), samples)


@pytest.mark.parametrize(("before", "after"), [(20, EPOCH), (EPOCH, 20), (2 * EPOCH, 2 * EPOCH)])
def test_a_length_that_keeps_the_order_is_allowed(before, after):
    assert require_same_order(order(before), order(after)) == ""


def test_of_other_documents_under_the_same_name_there_is_a_notice():
    assert "other documents" in require_same_order({**order(20), "digest": "of 99 documents"}, order(20))


@pytest.mark.parametrize(("before", "after"), [(EPOCH, EPOCH + 20), (2 * EPOCH, 3 * EPOCH), (3 * EPOCH, 10)])
def test_a_length_that_changes_the_order_is_refused(before, after):
    with pytest.raises(
        DataError, match=rf"reads {after} samples, that of the checkpoint {before} .*\nRestore the length"
    ):
        require_same_order(order(before), order(after))


def test_of_a_blend_every_part_counts():
    parts = [SimpleNamespace(document_index=np.arange(9), shuffle_index=np.arange(9) + shift) for shift in range(3)]
    blends = [order_of(SimpleNamespace(datasets=[*parts[:1], part]), number) for number, part in enumerate(parts)]
    assert len({blend["digest"] for blend in blends}) == 3
