"""Tokenize as Megatron-LM's tools/preprocess_data.py does: own code, on megatron-core's own builder.

    python -m benchmarks.data.process_pool INPUT TOKENIZER_JSON OUTPUT_PREFIX WORKERS

A pool of processes encodes line by line (`imap` in parts of 32 lines, as there), and this process adds each document to
`IndexedDatasetBuilder`. It calls the `tokenizers` library itself, where that tool calls it through transformers, and
imports neither Megatron's arguments nor its tokenizers: both make it faster than the tool.
"""

from __future__ import annotations

import json
import multiprocessing
import sys

import tokenizers
from megatron.core.datasets import indexed_dataset


class Encoder:
    def __init__(self, file):
        self.file = file

    def load(self):
        Encoder.tokenizer = tokenizers.Tokenizer.from_file(self.file)
        Encoder.eod = Encoder.tokenizer.token_to_id("<|endoftext|>")

    def encode(self, line):
        ids = Encoder.tokenizer.encode(json.loads(line)["text"]).ids
        ids.append(Encoder.eod)
        return ids, [len(ids)]


def main():
    path, file, prefix, workers = sys.argv[1:]
    encoder = Encoder(file)
    encoder.load()
    dtype = indexed_dataset.DType.optimal_dtype(Encoder.tokenizer.get_vocab_size())
    builder = indexed_dataset.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    with open(path, encoding="utf-8") as lines, multiprocessing.Pool(int(workers), encoder.load) as pool:  # noqa: PTH123
        for ids, lengths in pool.imap(encoder.encode, lines, 32):
            builder.add_document(ids, lengths)
    builder.finalize(f"{prefix}.idx")


if __name__ == "__main__":
    main()
