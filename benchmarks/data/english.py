"""English-like JSONL of any size, the same in every run, for benchmarks of tokenization.

The words of `corpus.jsonl` (the PEPs in `shared/data`, 11 MB of English with some code) are drawn from a chain: each
word is followed by one that followed it in the corpus. One word in sixty is invented, letter by letter in the same way,
so that new words keep appearing as they do in prose; repeating a small corpus would only measure a tokenizer's cache of
words it has seen. The text means nothing.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

_INVENTED_SHARE = 1 / 60
_INVENTED = 400_000
_DOCUMENTS_AT_ONCE = 4096


SOURCE = "words of the PEPs in a first-order chain, one in sixty invented: benchmarks/data/english.py"


def write_english(corpus: Path, output: Path, size: int) -> None:
    """Write at least `size` bytes of JSONL to `output`."""
    random = np.random.default_rng(0)
    with corpus.open() as lines:
        words = [word for line in lines for word in re.findall(r"\s*\S+", json.loads(line)["text"])]
    vocabulary, ids = np.unique(np.array(words, object), return_inverse=True)
    known = len(vocabulary)
    vocabulary = [*vocabulary.tolist(), *_invented(words, random)]
    written = 0
    with output.open("w") as stream:
        while written < size:
            for document in _documents(ids, known, len(vocabulary), random):
                written += stream.write(json.dumps({"text": "".join([vocabulary[i] for i in document])}) + "\n")
                if written >= size:
                    break


def _documents(ids, known, vocabulary, random):
    """Return documents as word ids, [words] each: lengths spread like those of web pages, mean about 800 words."""
    order = np.argsort(ids, kind="stable")
    first = np.searchsorted(ids[order], np.arange(known + 1))
    lengths = np.minimum(random.lognormal(6.2, 1.0, _DOCUMENTS_AT_ONCE).astype(int) + 5, 20_000)
    words = np.empty((lengths.max(), _DOCUMENTS_AT_ONCE), np.int32)
    place = random.integers(0, ids.size - 1, _DOCUMENTS_AT_ONCE)
    for row in words:
        row[:] = ids[place]
        count = first[row + 1] - first[row]
        place = (order[first[row] + (random.random(place.size) * count).astype(int)] + 1) % ids.size
    invented = random.random(words.shape) < _INVENTED_SHARE
    words[invented] = random.integers(known, vocabulary, int(invented.sum()))
    return [words[:length, column] for column, length in enumerate(lengths)]


def _invented(words, random):
    """Return words whose letters follow one another as in the corpus."""
    letters = np.frombuffer("".join(word.strip().lower() for word in words if word.strip().isalpha()).encode(), "u1")
    letters = letters[letters < 128]
    pairs = letters[:-1].astype(np.int64) * 128 + letters[1:]
    order = np.argsort(pairs, kind="stable")
    first = np.searchsorted(pairs[order], np.arange(128 * 128 + 1))
    place = random.integers(0, pairs.size - 2, _INVENTED)
    rows = np.empty((12, _INVENTED), np.uint8)
    for row in rows:
        row[:] = letters[place]
        pair = pairs[place]
        count = first[pair + 1] - first[pair]
        place = (order[first[pair] + (random.random(_INVENTED) * count).astype(int)] + 1) % (pairs.size - 1)
    text = rows.T.tobytes().decode()
    lengths = random.integers(3, 13, _INVENTED)
    return [f" {text[12 * number : 12 * number + length]}" for number, length in enumerate(lengths.tolist())]
