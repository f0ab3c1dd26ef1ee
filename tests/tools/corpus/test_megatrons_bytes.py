"""The files of the PEPs are those of Megatron-LM's preprocess_data.py, byte for byte.

How the checksums were obtained: `megatrons` below does with each line what tools/preprocess_data.py of Megatron-LM does
with `--append-eod`: json.loads, the tokenizers library's own GPT-2 and its own reading of a tokenizer.json, and
megatron-core 0.16.1's own IndexedDatasetBuilder. The slow test obtains them again; nothing of this project is in it.
"""

import gzip
import hashlib
import json
import lzma
import random
import subprocess
import sys
import time

import pytest
import tokenizers
import zstandard

from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.recipe.sections.data import TokenizerSection
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.inputs import Shard
from pretrain.tools.corpus.merging import merge_tokens
from pretrain.tools.corpus.unfinished import STATE, folder_of

PEPS = "05a7c466e7d450f886b40904d3a1755f"
MEGATRONS = {
    "gpt2": ("7e11b4d913734b0703ab53f22fb37f1a", "6fb4ae81988f55452ccb19c7ccccd7d5"),
    "huggingface": ("32f9733c960f50c22003014928442869", "f110e7054ebd3ff93af707bb9414809a"),
}
"""MD5 of .bin and .idx, for GPT-2's and GPT-NeoX-20B's tokenizer."""

PACK = {
    ".gz": lambda content: gzip.compress(content, 1),
    ".xz": lambda content: lzma.compress(content, preset=0),
    ".zst": zstandard.compress,
}


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def sums(prefix):
    return md5(bin_path(prefix)), md5(idx_path(prefix))


@pytest.fixture(scope="module")
def peps(shared_data):
    path = shared_data / "peps.jsonl"
    if not path.is_file() or md5(path) != PEPS:
        pytest.skip(f"{path.name} is not the one that the checksums are of")
    return path


@pytest.fixture(scope="module", params=MEGATRONS)
def section(request, shared_data):
    files = {"vocab_file": "gpt2-vocab.json", "merge_file": "gpt2-merges.txt"}
    named = files if request.param == "gpt2" else {"file": "20B_tokenizer.json"}
    return TokenizerSection(type=request.param, **{key: str(shared_data / name) for key, name in named.items()})


ONE_TOKENIZER = pytest.mark.parametrize(
    "section", ["huggingface", pytest.param("gpt2", marks=pytest.mark.full)], indirect=True
)


@pytest.mark.ranks
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full), 3])
def test_with_any_number_of_workers(tmp_path, peps, section, workers):
    built = build_tokens([peps], tmp_path / "p", section, append_eod=True, workers=workers)
    assert sums(tmp_path / "p") == MEGATRONS[section.type]
    assert built.counts.compared >= 5


@ONE_TOKENIZER
@pytest.mark.parametrize("suffix", [pytest.param(each, marks=[pytest.mark.full] * (each != ".zst")) for each in PACK])
def test_from_compressed_files(tmp_path, peps, section, suffix):
    compressed = tmp_path / f"peps.jsonl{suffix}"
    compressed.write_bytes(PACK[suffix](peps.read_bytes()))
    build_tokens([compressed], tmp_path / "p", section, append_eod=True, workers=2)
    assert sums(tmp_path / "p") == MEGATRONS[section.type]


@ONE_TOKENIZER
def test_from_four_shards(tmp_path, peps, section):
    prefixes = [tmp_path / f"p{Shard(number, 4).suffix}" for number in range(4)]
    for number, prefix in enumerate(prefixes):
        build_tokens([peps], prefix, section, append_eod=True, shard=Shard(number, 4))
    merge_tokens(prefixes, tmp_path / "merged")
    assert sums(tmp_path / "merged") == MEGATRONS[section.type]


@ONE_TOKENIZER
@pytest.mark.full
@pytest.mark.ranks
def test_after_three_kills(tmp_path, peps, section):
    """SIGKILL at random moments of a build that takes its time."""
    (tmp_path / "main.py").write_text(SLOW_BUILD)
    command = [sys.executable, tmp_path / "main.py", peps, tmp_path / "p", section.model_dump_json()]
    moments, reached = random.Random(0), []
    for _ in range(3):
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, start_new_session=True) as process:
            assert process.stdout.readline() == b"begun\n"
            time.sleep(moments.uniform(0.1, 1.0))
            process.kill()
        reached.append(json.loads((folder_of(tmp_path / "p") / STATE).read_text())["written"][0])
    assert 0 < reached[0] <= reached[1] <= reached[2] < 620
    build_tokens([peps], tmp_path / "p", section, append_eod=True, workers=2)
    assert sums(tmp_path / "p") == MEGATRONS[section.type]


SLOW_BUILD = """
import sys, time
from functools import partial
from pathlib import Path
from pretrain.tools.corpus import build, unfinished
from pretrain.tools.corpus import chunks
from pretrain.tools.corpus.unfinished import STATE, folder_of
from pretrain.recipe.sections.data import TokenizerSection

def slowly(progress, told=[]):
    if len(told) == 1:
        print("begun", flush=True)
    told.append(progress)
    time.sleep(0.05 if len(told) < 25 else 600)  # three times as many are not all

unfinished.SAVED_EVERY = 0.0
build.read_chunks = partial(chunks.read_chunks, chunk_bytes=1 << 17)
corpus, prefix, section = sys.argv[1:]
section = TokenizerSection.model_validate_json(section)
build.build_tokens([Path(corpus)], Path(prefix), section, append_eod=True, workers=2, progress=slowly)
"""


@pytest.mark.full
@pytest.mark.slow
def test_the_checksums_are_megatrons(bridged, tmp_path, peps, section):
    megatrons(tmp_path / "p", peps, librarys(section))
    assert sums(tmp_path / "p") == MEGATRONS[section.type]


def librarys(section):
    if section.type == "huggingface":
        return tokenizers.Tokenizer.from_file(section.file)
    return tokenizers.ByteLevelBPETokenizer(section.vocab_file, section.merge_file, add_prefix_space=False)


def megatrons(prefix, corpus, tokenizer):
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(bin_path(prefix)), dtype=DType.optimal_dtype(tokenizer.get_vocab_size()))
    with corpus.open(encoding="utf-8") as lines:
        for line in lines:
            ids = [*tokenizer.encode(json.loads(line)["text"]).ids, tokenizer.token_to_id("<|endoftext|>")]
            builder.add_document(ids, [len(ids)])
    builder.finalize(str(idx_path(prefix)))
