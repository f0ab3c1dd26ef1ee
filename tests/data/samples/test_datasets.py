"""A recipe's datasets: Megatron's samples, checked before they are built, with a cache that can be trusted."""

import json
import os
import pickle

import numpy as np
import pytest
import torch

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.needed import SampleCounts, samples_needed
from pretrain.data.token_files.reading import TokenFile, bin_path, idx_path
from pretrain.data.token_files.tokenizer_stamp import stamp_path
from pretrain.data.tokenizers import load_tokenizer
from pretrain.data.tokenizers.characters import train_characters
from pretrain.errors import DataError
from pretrain.recipe.sections.data import TokenizerSection
from pretrain.tools.corpus.build import build_tokens

EOD = 256
SEQ_LENGTH = 32

pytestmark = pytest.mark.usefixtures("bridged")


def built(recipe, samples=None):
    from pretrain.data.samples.datasets import build_datasets

    return build_datasets(recipe, load_tokenizer(recipe.tokenizer), samples or samples_needed(recipe, 100))


def error(recipe, samples=None):
    with pytest.raises(DataError) as caught:
        built(recipe, samples)
    assert len(str(caught.value).splitlines()) <= 3
    return str(caught.value)


class TestSamples:
    def test_are_megatrons(self, small_recipe, token_files, tmp_path):
        """The same arguments given to megatron-core itself."""
        from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

        from pretrain.data.samples.datasets import _TokenizerFacts

        recipe = small_recipe()
        config = GPTDatasetConfig(
            random_seed=recipe.train.seed,
            sequence_length=SEQ_LENGTH,
            blend=([str(token_files)], None),
            split=recipe.data.split,
            path_to_cache=str(tmp_path / "megatrons_cache"),
            tokenizer=_TokenizerFacts(257, EOD, {}),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        theirs = BlendedMegatronDatasetBuilder(GPTDataset, [800, 24, 8], lambda: True, config).build()
        ours = built(recipe, SampleCounts(train=800, valid=24, test=8))
        for their_split, our_split in zip(theirs, (ours.train, ours.valid, ours.test), strict=True):
            assert len(their_split) == len(our_split)
            for index in range(0, len(their_split), 37):
                for key, value in their_split[index].items():
                    assert torch.equal(value, our_split[index][key])

    def test_labels_are_the_tokens_that_follow(self, small_recipe):
        sample = built(small_recipe()).train[5]
        assert torch.equal(sample["labels"][:-1], sample["tokens"][1:])
        assert sample["position_ids"].tolist() == list(range(SEQ_LENGTH))
        assert sample["loss_mask"].tolist() == [1.0] * SEQ_LENGTH
        assert "attention_mask" not in sample  # megatron-core's is of the sequence's square

    def test_one_epoch_holds_every_token_once(self, small_recipe, token_files):
        datasets = built(small_recipe("data.split=1,0,0", "evaluation.interval=0"), SampleCounts(train=1))
        counts = np.bincount(np.concatenate([datasets.train[i]["tokens"] for i in range(len(datasets.train))]))
        assert len(datasets.train) == (TokenFile.open(token_files).tokens.size - 1) // SEQ_LENGTH
        difference = np.bincount(TokenFile.open(token_files).tokens) - counts
        assert difference.min() >= 0
        assert difference.sum() <= SEQ_LENGTH

    def test_splits_share_no_document(self, tmp_path, small_recipe, bytes_section):
        """Document i is the letter i, many times."""
        letters = "abcdefghij"
        corpus = write_jsonl(tmp_path / "letters.jsonl", [letter * 200 for letter in letters])
        build_tokens([corpus], tmp_path / "letters", bytes_section)
        datasets = built(small_recipe(f"data.path={tmp_path / 'letters'}", "data.split=70,20,10"))
        seen = [
            {chr(token) for index in range(len(split)) for token in split[index]["tokens"].tolist()}
            for split in (datasets.train, datasets.valid, datasets.test)
        ]
        assert seen == [set("abcdefg"), set("hi"), set("j")]

    def test_an_unused_split_is_not_built(self, small_recipe):
        datasets = built(small_recipe("evaluation.interval=0"))
        assert (datasets.valid, datasets.test) == (None, None)

    def test_a_split_without_documents_is_allowed_if_it_is_unused(self, tmp_path, small_recipe, bytes_section):
        """megatron-core would look for its first token for ever."""
        build_tokens([write_jsonl(tmp_path / "few.jsonl", DOCUMENTS[5:9])], tmp_path / "few", bytes_section)
        datasets = built(small_recipe(f"data.path={tmp_path / 'few'}", "evaluation.interval=0"))
        assert len(datasets.train) >= 800


class TestMasks:
    def sample(self, recipe):
        """The first sample that has an end of document in its middle, and the places of the ends."""
        dataset = built(recipe).train
        for index in range(len(dataset)):
            sample = dataset[index]
            ends = (sample["tokens"] == EOD).nonzero().flatten().tolist()
            if ends and 3 < ends[0] < SEQ_LENGTH - 4:
                return sample, ends
        pytest.fail("no sample has an end of document in its middle")

    def test_eod_mask_loss_leaves_out_the_end_tokens(self, small_recipe):
        sample, ends = self.sample(small_recipe("data.eod_mask_loss=true"))
        assert (sample["loss_mask"] == 0).nonzero().flatten().tolist() == ends

    def test_reset_position_ids_begins_again_after_each_document(self, small_recipe):
        sample, ends = self.sample(small_recipe("data.reset_position_ids=true"))
        position, expected = 0, []
        for place in range(SEQ_LENGTH):
            expected.append(position)
            position = 0 if place in ends else position + 1
        assert sample["position_ids"].tolist() == expected


class TestBlend:
    @pytest.fixture
    def blend(self, tmp_path, small_recipe, bytes_section):
        """A recipe that mixes files of a single letter each."""

        def make(weights, *overrides, documents=40):
            parts = []
            for letter, weight in weights.items():
                prefix = tmp_path / letter
                if not bin_path(prefix).exists():
                    corpus = write_jsonl(tmp_path / f"{letter}.jsonl", [letter * 50] * documents)
                    build_tokens([corpus], prefix, bytes_section)
                parts.append({"weight": weight, "path": str(prefix)})
            return small_recipe("data.path=null", f"data.blend={json.dumps(parts)}", *overrides)

        return make

    def letters(self, dataset, number):
        return [chr(int(dataset[index]["tokens"][0])) for index in range(number)]

    def test_samples_follow_the_weights_from_the_beginning_on(self, blend):
        letters = self.letters(built(blend({"a": 0.35, "b": 0.65})).train, 800)
        for number in (20, 100, 800):
            assert letters[:number].count("a") == pytest.approx(0.35 * number, abs=1.01)

    def test_weights_need_not_sum_to_one(self, blend):
        letters = self.letters(built(blend({"a": 7, "b": 13})).train, 100)
        assert letters.count("a") == 35

    def test_every_split_is_mixed(self, blend):
        datasets = built(blend({"a": 1, "b": 1}, "data.split=80,10,10"))
        assert set(self.letters(datasets.valid, 8)) == set(self.letters(datasets.test, 8)) == {"a", "b"}

    def test_a_blend_of_one_is_that_file(self, blend, small_recipe, tmp_path):
        mixed = built(blend({"a": 3}))
        assert type(mixed.train).__name__ == type(built(small_recipe()).train).__name__

    def test_few_samples_of_a_heavy_part_suffice(self, blend):
        """megatron-core's own margin is too small here: it raises an IndexError."""
        weights = {"a": 0.9} | dict.fromkeys("bcdefghijk", 0.01)
        datasets = built(blend(weights, documents=4), SampleCounts(train=20))
        assert self.letters(datasets.train, 20).count("a") >= 17

    def test_every_part_is_checked(self, blend):
        recipe = blend({"a": 1, "b": 1})
        bin_path(recipe.data.blend[1].path).unlink()
        assert "b.bin is missing" in error(recipe)


class TestChecks:
    def test_missing_files_are_named_with_the_command(self, small_recipe, token_files):
        idx_path(token_files).unlink()
        assert "corpus.idx is missing" in error(small_recipe())

    def test_truncated_files_are_named_with_both_sizes(self, small_recipe, token_files):
        size = bin_path(token_files).stat().st_size
        os.truncate(bin_path(token_files), size - 10)
        assert f"corpus.bin is truncated: {size - 10} bytes, corpus.idx expects {size}" in error(small_recipe())

    def test_another_tokenizer_is_named(self, small_recipe, token_files):
        stamp_path(token_files).write_text('{"fingerprint": "x", "vocab_size": 50257, "eod": 50256}')
        assert "made with another tokenizer (50257 tokens) than the given one (257 tokens)." in error(small_recipe())
        stamp_path(token_files).write_text('{"fingerprint": "x", "vocab_size": 257, "eod": 256}')
        assert "made with another tokenizer than the given one: was its file replaced?" in error(small_recipe())

    def test_ids_that_the_tokenizer_does_not_have_are_found_without_a_note(self, small_recipe, token_files):
        stamp_path(token_files).unlink()
        tokens = np.fromfile(bin_path(token_files), "<u2")
        tokens[100] = 999
        tokens.tofile(bin_path(token_files))
        assert "token id 999, but the tokenizer has only 257 tokens" in error(small_recipe())

    def test_a_split_without_documents_is_named(self, tmp_path, small_recipe, bytes_section):
        build_tokens([write_jsonl(tmp_path / "few.jsonl", DOCUMENTS[5:9])], tmp_path / "few", bytes_section)
        message = error(small_recipe(f"data.path={tmp_path / 'few'}"))
        assert "split 'valid' has 0 of 4 documents with 0 tokens" in message

    def test_less_text_than_a_sample_is_named(self, tmp_path, small_recipe, bytes_section):
        build_tokens([write_jsonl(tmp_path / "few.jsonl", ["x" * SEQ_LENGTH])], tmp_path / "few", bytes_section)
        message = error(small_recipe(f"data.path={tmp_path / 'few'}", "data.split=1,0,0", "evaluation.interval=0"))
        assert f"with {SEQ_LENGTH} tokens, fewer than one sample of {SEQ_LENGTH} + 1" in message

    def test_a_sample_and_a_label_are_enough(self, tmp_path, small_recipe, bytes_section):
        build_tokens([write_jsonl(tmp_path / "few.jsonl", ["x" * (SEQ_LENGTH + 1)])], tmp_path / "few", bytes_section)
        assert built(small_recipe(f"data.path={tmp_path / 'few'}", "data.split=1,0,0", "evaluation.interval=0")).train

    def test_a_cache_that_cannot_be_written_is_named(self, tmp_path, small_recipe):
        (tmp_path / "file").write_text("")
        message = error(small_recipe(f"data.cache_path={tmp_path / 'file'}"))
        assert f"cannot be written to {tmp_path / 'file'}" in message
        assert "data.cache_path" in message


class TestCache:
    def files(self, token_files):
        return sorted((token_files.parent / "cache").iterdir())

    def tokens(self, datasets):
        return [datasets.train[index]["tokens"].tolist() for index in range(20)]

    def test_lies_beside_the_token_files(self, small_recipe, token_files):
        built(small_recipe("evaluation.interval=0"))
        names = {path.name.partition("-")[2] for path in self.files(token_files)}
        kinds = ("description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy")
        assert names == {f"CachedGPTDataset-train-{kind}" for kind in kinds}

    def test_or_where_the_recipe_says(self, tmp_path, small_recipe, token_files):
        built(small_recipe(f"data.cache_path={tmp_path / 'elsewhere'}"))
        assert not (token_files.parent / "cache").exists()
        assert len(list((tmp_path / "elsewhere").iterdir())) == 12

    def test_is_used_again(self, small_recipe, token_files):
        first = built(small_recipe())
        before = {path: path.stat().st_mtime_ns for path in self.files(token_files)}
        again = built(small_recipe())
        assert {path: path.stat().st_mtime_ns for path in self.files(token_files)} == before
        assert self.tokens(again) == self.tokens(first)

    def test_is_not_used_for_rebuilt_data(self, tmp_path, small_recipe, token_files, bytes_section):
        built(small_recipe(), SampleCounts(train=1))
        fewer = write_jsonl(tmp_path / "fewer.jsonl", DOCUMENTS[:100])
        build_tokens([fewer], token_files, bytes_section, append_eod=True, force=True)
        datasets = built(small_recipe(), SampleCounts(train=1))
        tokens = int(TokenFile.open(token_files).lengths[:90].sum())
        assert len(datasets.train) == (tokens - 1) // SEQ_LENGTH

    @pytest.mark.parametrize("kept", [0, 60, -8])
    def test_is_made_again_if_a_killed_run_left_half_of_it(self, small_recipe, token_files, kept):
        expected = self.tokens(built(small_recipe()))
        for path in self.files(token_files):
            if path.name.endswith("train-shuffle_index.npy"):
                path.write_bytes(path.read_bytes()[:kept])
        assert self.tokens(built(small_recipe())) == expected

    @pytest.mark.parametrize("blended", [False, True])
    def test_a_dataset_is_sent_without_its_indices(self, small_recipe, token_files, blended):
        parts = json.dumps([{"weight": weight, "path": str(token_files)} for weight in (1, 2)])
        recipe = small_recipe("data.path=null", f"data.blend={parts}") if blended else small_recipe()
        datasets = built(recipe, SampleCounts(train=20_000))
        sent = pickle.dumps(datasets.train)
        assert self.tokens(type(datasets)(train=pickle.loads(sent), valid=None, test=None)) == self.tokens(datasets)
        assert len(sent) < 10_000


@pytest.mark.parametrize("index", ["megatron", "native"])
def test_as_many_iterations_as_a_run_says_read_the_whole_validation_text(small_recipe, tmp_path, bytes_section, index):
    from pretrain.training.reporting.run_output import validation_text

    numbered = [" ".join(f"{document}.{number}" for number in range(40)) for document in range(200)]
    build_tokens([write_jsonl(tmp_path / "n.jsonl", numbered)], tmp_path / "n", bytes_section)
    start, stop = (TokenFile.open(tmp_path / "n").tokens_before(sequence) for sequence in (180, 196))
    samples = (stop - start - 1) // SEQ_LENGTH
    needed = -(-samples // 8)

    def read(iters):
        recipe = small_recipe(f"data.path={tmp_path / 'n'}", f"data.index={index}", f"evaluation.iters={iters}")
        counts = samples_needed(recipe, 100)
        valid = built(recipe, counts).valid
        return validation_text(recipe), len({tuple(valid[i]["tokens"].tolist()) for i in range(counts.valid)})

    said = f"the validation text has {samples}, which evaluation.iters {needed} reads"
    few, all_ = read(needed - 1), read(needed)
    assert few == (f"every evaluation reads the same {8 * (needed - 1)} samples; {said}", 8 * (needed - 1))
    assert all_[0].endswith(said)
    assert all_[1] >= samples


class TestNoEndOfDocument:
    """A tokenizer without an end-of-document token trains where nothing needs one."""

    @pytest.fixture
    def recipe(self, small_recipe, tmp_path):
        section = TokenizerSection(type="huggingface", file=str(tmp_path / "t.json"))
        train_characters(["abc "], tmp_path / "t.json")
        build_tokens([write_jsonl(tmp_path / "c.jsonl", ["ab c" * 20] * 40)], tmp_path / "c", section)
        tokenizer = json.dumps({"type": "huggingface", "file": section.file})
        return lambda *overrides: small_recipe(f"data.path={tmp_path / 'c'}", f"tokenizer={tokenizer}", *overrides)

    @pytest.mark.parametrize("index", ["megatron", "native"])
    def test_samples_have_no_end(self, recipe, index):
        sample = built(recipe(f"data.index={index}")).train[0]
        assert sample["loss_mask"].tolist() == [1.0] * SEQ_LENGTH
        assert sample["position_ids"].tolist() == list(range(SEQ_LENGTH))

    @pytest.mark.parametrize("key", ["eod_mask_loss", "reset_position_ids", "reset_attention_mask"])
    def test_keys_that_need_one_are_named(self, recipe, key):
        assert f"data.{key} needs an end-of-document token" in error(recipe(f"data.{key}=true"))


class TestFilesOfEachSplit:
    """data.train_data_path, valid_data_path and test_data_path: each a file or a blend."""

    @pytest.fixture
    def letters(self, tmp_path, bytes_section):
        """Token files by a letter, of which every document consists."""
        for letter in "abcd":
            corpus = write_jsonl(tmp_path / f"{letter}.jsonl", [letter * 50] * 40)
            build_tokens([corpus], tmp_path / letter, bytes_section)
        return lambda letter: str(tmp_path / letter)

    @pytest.fixture
    def own(self, small_recipe, letters):
        """A recipe that trains on 1/4 a and 3/4 b, validates on c, and tests on d and a in equal parts."""
        blend = {
            "train_data_path": [{"weight": 0.25, "path": letters("a")}, {"weight": 0.75, "path": letters("b")}],
            "valid_data_path": letters("c"),
            "test_data_path": [{"weight": 1, "path": letters("d")}, {"weight": 1, "path": letters("a")}],
        }
        return lambda *overrides: small_recipe(f"data={json.dumps(blend | {'num_workers': 0})}", *overrides)

    COUNTS = SampleCounts(train=100, valid=24, test=40)

    @pytest.mark.parametrize("index", ["megatron", "native"])
    def test_each_reads_its_own(self, own, index):
        datasets = built(own(f"data.index={index}"), self.COUNTS)
        read = [
            {letter: letters.count(letter) for letter in sorted(set(letters))}
            for split, number in ((datasets.train, 100), (datasets.valid, 24), (datasets.test, 40))
            for letters in [[chr(int(split[i]["tokens"][0])) for i in range(number)]]
        ]
        assert read == [{"a": 25, "b": 75}, {"c": 24}, {"a": 20, "d": 20}]

    def test_the_samples_are_megatrons(self, own, letters):
        from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
        from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

        from pretrain.data.samples.datasets import _TokenizerFacts

        recipe = own()
        config = GPTDatasetConfig(
            random_seed=recipe.train.seed,
            sequence_length=SEQ_LENGTH,
            blend_per_split=[
                ([letters("a"), letters("b")], [0.25, 0.75]),
                ([letters("c")], None),
                ([letters("d"), letters("a")], [1.0, 1.0]),
            ],
            tokenizer=_TokenizerFacts(257, EOD, {}),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        theirs = BlendedMegatronDatasetBuilder(GPTDataset, [100, 24, 40], lambda: True, config).build()
        ours = built(recipe, self.COUNTS)
        for their_split, our_split in zip(theirs, (ours.train, ours.valid, ours.test), strict=True):
            assert len(their_split) == len(our_split)
            for index in range(0, len(their_split), 3):
                for key, value in their_split[index].items():  # of a blend the number of the file, too
                    assert torch.equal(torch.as_tensor(value), torch.as_tensor(our_split[index][key]))

    def test_a_file_is_checked_for_the_splits_that_read_it(self, own, tmp_path, bytes_section):
        build_tokens([write_jsonl(tmp_path / "c.jsonl", ["c" * 9])], tmp_path / "c", bytes_section, force=True)
        assert "c: split 'valid' has 1 of 1 documents with 9 tokens" in error(own())
        assert built(own("data.valid_data_path=null", "evaluation.interval=0")).valid is None
