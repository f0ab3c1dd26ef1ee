"""A blend of `data.index: megatron` is Megatron-LM's sample for sample, wherever Megatron-LM starts at all."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.samples.counts import SampleCounts
from pretrain.data.token_files.reading import TokenFile
from pretrain.data.tokenizers import load_tokenizer
from pretrain.recipe import make_recipe
from pretrain.recipe.sections.data import TokenizerSection
from pretrain.tools.corpus.build import build_tokens
from recipe.smallest import SMALLEST

pytestmark = pytest.mark.usefixtures("bridged")

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


@settings(max_examples=40)
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

    from pretrain.data.samples.blending import blending_indices

    weights = normalize(weights)
    taken = np.bincount(blending_indices(weights, samples)[0], minlength=len(weights))
    assert (taken <= np.floor(np.array(weights) * samples) + 1).all()


@pytest.mark.parametrize("prepared", [1, 43, 44, 45, 300])
def test_the_samples_of_a_part_are_counted_before_it_is_built(files, tmp_path, prepared):
    from pretrain.data.samples.blending import _available

    train, *_ = ours(files[:1], [1.0], (prepared, 1, 1), tmp_path)
    assert len(train) == _available(TokenFile.open(files[0]), (0.0, 0.6), prepared, SEQ_LENGTH)
