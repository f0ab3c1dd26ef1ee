"""`data.index: native`: every token once an epoch, nothing written, and blends that change without a repetition."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.example_corpus import write_jsonl
from pretrain.conformance.compared_part import mask_of_documents
from pretrain.data.needed import SampleCounts
from pretrain.data.samples.native_samples import NativeSamples, Phase, SampleFormat, Windows
from pretrain.data.samples.sequence_pieces import document_ends
from pretrain.data.token_files.reading import TokenFile
from pretrain.data.tokenizers import load_tokenizer
from pretrain.errors import DataError
from pretrain.plugins.signatures import Documents
from pretrain.tools.corpus.build import build_tokens

EOD = 256
SEQ_LENGTH = 32
FORM = SampleFormat(eod=EOD, eod_mask_loss=False, reset_position_ids=False)

pytestmark = pytest.mark.usefixtures("bridged")


def built(recipe, samples):
    from pretrain.data.samples.datasets import build_datasets

    return build_datasets(recipe, load_tokenizer(recipe.tokenizer), samples)


@pytest.fixture
def native(small_recipe):
    return lambda *overrides: small_recipe("data.index=native", *overrides)


@pytest.fixture(scope="module")
def files(tmp_path_factory, bridged):
    """Token files by a letter, of which every document consists, and their sizes differ."""
    from pretrain.recipe.sections.data import TokenizerSection

    folder = tmp_path_factory.mktemp("letters")
    for number, letter in enumerate("ABC", 1):
        texts = [letter * (90 + 7 * i) for i in range(6 * number)]
        build_tokens([write_jsonl(folder / f"{letter}.jsonl", texts)], folder / letter, TokenizerSection(type="bytes"))
    return {letter: str(folder / letter) for letter in "ABC"}


def windows_of(prefix, bounds, seed):
    file = TokenFile.open(prefix)
    return Windows(prefix, file.identity(), file.range_of(bounds, "documents"), SEQ_LENGTH, seed)


class TestWindows:
    @pytest.mark.parametrize("bounds", [(0.0, 1.0), (0.0, 0.6), (0.6, 0.9), (0.9, 1.0)])
    @pytest.mark.parametrize("epoch", [0, 1, 5])
    def test_an_epoch_holds_every_token_of_its_split_once(self, token_files, bounds, epoch):
        windows = windows_of(token_files, bounds, seed=1)
        file = TokenFile.open(token_files)
        first, last = (file.tokens_before(round(share * file.lengths.size)) for share in bounds)
        numbers = range(epoch * windows.per_epoch, (epoch + 1) * windows.per_epoch)
        seen = Counter(int(token) for number in numbers for token in windows[number][:-1])
        missing = Counter(file.tokens[first:last].tolist()) - seen
        assert not seen - Counter(file.tokens[first:last].tolist())
        assert missing.total() <= SEQ_LENGTH

    def test_ids_are_a_run_of_the_file(self, token_files):
        windows, text = windows_of(token_files, (0.0, 1.0), seed=1), TokenFile.open(token_files).tokens
        runs = {text[i : i + SEQ_LENGTH + 1].tobytes() for i in range(text.size - SEQ_LENGTH)}
        assert all(windows[number].tobytes() in runs for number in range(2 * windows.per_epoch))

    def test_epochs_and_seeds_have_orders_of_their_own(self, token_files):
        def order(epoch, seed):
            windows = windows_of(token_files, (0.0, 1.0), seed)
            return [windows[epoch * windows.per_epoch + i].tobytes() for i in range(windows.per_epoch)]

        assert len({tuple(order(epoch, seed)) for epoch in (0, 1) for seed in (1, 2)}) == 4
        assert order(1, 2) == order(1, 2)

    def test_ids_are_not_copied(self, token_files):
        windows = windows_of(token_files, (0.0, 1.0), seed=1)
        assert not windows[0].flags.owndata


class TestForm:
    @pytest.mark.parametrize("eod_mask_loss", [False, True])
    @pytest.mark.parametrize("reset_position_ids", [False, True])
    @pytest.mark.parametrize("ends", [[], [0], [7], [31, 32], [3, 4, 20], list(range(33))])
    def test_masks_and_positions_are_megatrons(self, eod_mask_loss, reset_position_ids, ends):
        from megatron.core.datasets.gpt_dataset import _get_ltor_masks_and_position_ids

        ids = np.arange(33, dtype=np.uint16)
        ids[ends] = EOD
        sample = SampleFormat(eod=EOD, eod_mask_loss=eod_mask_loss, reset_position_ids=reset_position_ids)(ids)
        tokens = torch.from_numpy(ids[:-1].astype(np.int64))
        attention_mask, loss_mask, position_ids = _get_ltor_masks_and_position_ids(
            tokens, EOD, reset_position_ids, True, eod_mask_loss, True
        )
        theirs = {
            "tokens": tokens,
            "labels": torch.from_numpy(ids[1:].astype(np.int64)),
            "loss_mask": loss_mask,
            "position_ids": position_ids,
        }
        assert sample.keys() == theirs.keys()
        for key, value in theirs.items():
            assert (sample[key].dtype, sample[key].tolist()) == (value.dtype, value.tolist()), key
        ends = document_ends(tokens[None], EOD)
        assert torch.equal(mask_of_documents(Documents.of(torch.stack((ends, ends))), 1)[0], attention_mask)


class TestDatasets:
    def test_nothing_is_written(self, native, token_files):
        before = sorted(token_files.parent.iterdir())
        datasets = built(native(), SampleCounts(train=800, valid=24, test=8))
        assert [len(split) for split in (datasets.train, datasets.valid, datasets.test)] == [800, 24, 8]
        datasets.train[799]
        assert sorted(token_files.parent.iterdir()) == before

    def test_splits_are_megatrons(self, native, small_recipe, files):
        """Each begins and ends where Megatron's does, however few of its samples are read."""
        parts = [f"data.path={files['C']}", "data.split=70,20,10"]
        ours = built(native(*parts), SampleCounts(train=20, valid=20, test=20))
        theirs = built(small_recipe(*parts), SampleCounts(train=20, valid=20, test=20))
        file = TokenFile.open(files["C"])
        for our_split, their_split in zip(
            (ours.train, ours.valid, ours.test), (theirs.train, theirs.valid, theirs.test), strict=True
        ):
            (windows,) = our_split.parts.values()
            first, last = int(their_split.indices[0]), int(their_split.indices[-1])
            assert windows._first == file.tokens_before(first)
            assert windows._first + windows._size == file.tokens_before(last + 1)

    def test_the_identity_of_a_file_is_computed_once_for_all_splits(self, native, monkeypatch):
        read, identity = [], TokenFile.identity
        monkeypatch.setattr(TokenFile, "identity", lambda file: read.append(file) or identity(file))
        built(native(), SampleCounts(train=80, valid=8, test=8))
        assert len(read) == 1

    def test_a_split_of_no_samples_is_none(self, native):
        datasets = built(native("evaluation.interval=0"), SampleCounts(train=8))
        assert (datasets.valid, datasets.test) == (None, None)

    def test_too_little_text_is_an_error(self, native, files):
        with pytest.raises(DataError, match="fewer than one sample"):
            built(native(f"data.path={files['A']}", "model.seq_length=4000"), SampleCounts(train=8))

    def test_a_pickled_dataset_is_small_and_reads_the_same(self, native):
        dataset = built(native(), SampleCounts(train=100)).train
        dataset[3]
        sent = pickle.dumps(dataset)
        assert len(sent) < 3000
        for key, value in pickle.loads(sent)[57].items():
            assert torch.equal(value, dataset[57][key])

    def test_a_longer_training_begins_with_the_samples_of_a_shorter_one(self, native):
        short, long = (built(native(), SampleCounts(train=number)).train for number in (50, 5000))
        assert all(torch.equal(short[i]["tokens"], long[i]["tokens"]) for i in range(50))
        with pytest.raises(IndexError):
            short[50]


def blend(files, weights, length=10_000):
    parts = [(windows_of(files[letter], (0.0, 1.0), seed=1), weight) for letter, weight in weights.items()]
    return NativeSamples.of(parts, FORM, length)


class TestBlend:
    def test_samples_follow_the_weights(self, files):
        dataset = blend(files, {"A": 3, "B": 1})
        letters = Counter(chr(int(dataset[i]["tokens"][0])) for i in range(400))
        assert letters == {"A": 300, "B": 100}

    def test_a_file_that_is_named_twice_has_both_weights(self, files):
        parts = [(windows_of(files[letter], (0.0, 1.0), seed=1), weight) for letter, weight in ("A1", "B2", "A1")]
        dataset = NativeSamples.of([(windows, float(weight)) for windows, weight in parts], FORM, 100)
        assert Counter(chr(int(dataset[i]["tokens"][0])) for i in range(100)) == {"A": 50, "B": 50}

    def test_the_same_blend_in_another_order_continues_unchanged(self, files):
        dataset = blend(files, {"A": 0.7, "B": 0.2, "C": 0.1})
        resumed = blend(files, {"C": 1, "A": 7, "B": 2}).resume(77, dataset.blend())
        assert resumed.phase.begin == 77  # 0.1 is not exactly a tenth
        resumed = blend(files, {"C": 0.1, "A": 0.7, "B": 0.2}).resume(77, dataset.blend())
        assert resumed.phase == dataset.phase
        assert all(torch.equal(resumed[i]["tokens"], dataset[i]["tokens"]) for i in range(77, 200))

    @given(
        st.lists(
            st.tuples(
                st.integers(0, 60),
                st.dictionaries(st.sampled_from("ABC"), st.sampled_from([0.1, 0.35, 1.0, 4.0]), min_size=1),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def test_no_sample_repeats_within_an_epoch_when_the_blend_changes(self, files, plan):
        """Each (samples, weights) is a part of the training; datasets come, go and return."""
        position, saved, read = 0, None, {letter: [] for letter in "ABC"}
        for samples, weights in plan:
            dataset = blend(files, weights)
            dataset = dataset.resume(position, saved) if saved else dataset
            letters = {
                windows.identity: letter for letter, windows in ((w.prefix[-1], w) for w in dataset.parts.values())
            }
            for i in range(position, position + samples):
                name, number = dataset.phase.at(i)
                read[letters[name]].append(number)
            position += samples
            saved = dataset.blend()
            for name, count in dataset.phase.read_before(position).items():
                if name in letters:
                    assert count == len(read[letters[name]])
        for numbers in read.values():
            assert numbers == list(range(len(numbers)))  # each dataset continues; epochs: see TestWindows


def test_a_checkpoint_of_another_index_begins_the_counting(files):
    dataset = blend(files, {"A": 1}).resume(40, None)
    assert (dataset.phase.begin, dataset.phase.read_before(50)) == (40, {next(iter(dataset.parts)): 10})


def test_the_samples_read_of_each_file_are_reported(files):
    before = blend(files, {"A": 1, "B": 1})
    dataset = blend(files, {"A": 1, "C": 3}).resume(30, before.blend())
    a, c = dataset.describe(30)
    assert a.startswith(f"{files['A']}: weight 0.25, 15 samples read")
    assert c.startswith(f"{files['C']}: weight 0.75, 0 samples read")


def test_a_phase_survives_a_checkpoint(files):
    phase = Phase(7, {"a": 0.5, "b": 2.0}, {"a": 3, "gone": 9})
    saved = replace(blend(files, {"A": 1}), phase=phase).blend()
    assert replace(blend(files, {"A": 1}), phase=Phase(0, phase.weights)).resume(7, saved).phase == phase


class TestSplitByTokens:
    """data.split_by: tokens divides one long document."""

    TOKENS = 5_003

    @pytest.fixture
    def one_document(self, native, tmp_path):
        (tmp_path / "text.txt").write_text("".join(chr(32 + number % 90) for number in range(self.TOKENS)))
        prefix = tmp_path / "text"
        build_tokens([tmp_path / "text.txt"], prefix, native().tokenizer)
        return lambda *overrides: native(f"data.path={prefix}", "data.split=90,8,2", *overrides)

    def test_each_split_has_its_share_of_the_tokens_of_one_document(self, one_document):
        counts = SampleCounts(train=20, valid=8, test=8)
        datasets = built(one_document("data.split_by=tokens"), counts)
        windows = [next(iter(split.parts.values())) for split in (datasets.train, datasets.valid, datasets.test)]
        assert [(each._first, each._first + each._size) for each in windows] == [(0, 4503), (4503, 4903), (4903, 5003)]

    def test_no_split_reads_a_token_of_another(self, one_document):
        datasets = built(one_document("data.split_by=tokens"), SampleCounts(train=300, valid=30, test=8))
        text = TokenFile.open(one_document().data.path).tokens
        (windows,) = datasets.valid.parts.values()
        within = {text[i : i + SEQ_LENGTH + 1].tobytes() for i in range(4503, 4903 - SEQ_LENGTH)}
        assert {windows[number].tobytes() for number in range(5 * windows.per_epoch)} <= within

    def test_by_documents_one_split_gets_all_and_the_error_says_what_to_do(self, one_document):
        with pytest.raises(DataError) as caught:
            built(one_document(), SampleCounts(train=20, valid=8))
        assert str(caught.value).splitlines()[1] == (
            "data.split: 90,8,2 divides documents; to divide tokens: data.split_by: tokens, data.index: native."
        )
