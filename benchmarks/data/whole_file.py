"""Tokenize as Megatron-LM's tools/preprocess_data_fast.py does: own code, gigatoken over the whole file at once.

    python -m benchmarks.data.whole_file INPUT TOKENIZER_JSON OUTPUT_PREFIX

All documents are encoded into one array in memory, the end of document is appended to the array, and megatron-core's
`IndexedDatasetBuilder` gets them. That of megatron-core 0.16.1 takes one document at a time, the tool's newer one takes
all; so here the ids are written in one piece, and the builder gets the lengths. The tool also imports Megatron's
arguments and tokenizers, and does all this in a process that it spawns: that is left out, in its favour.
"""

from __future__ import annotations

import sys

import awkward as ak
import gigatoken
import numpy as np
from megatron.core.datasets import indexed_dataset


def main():
    path, file, prefix = sys.argv[1:]
    tokenizer = gigatoken.Tokenizer(file)
    documents = tokenizer.encode_files(gigatoken.JsonlFileSource([path], field="text"))
    eod = ak.singletons(ak.Array(np.full(len(documents), tokenizer.encode("<|endoftext|>")[0], np.uint32)))
    documents = ak.concatenate([documents, eod], axis=1)
    dtype = indexed_dataset.DType.optimal_dtype(tokenizer.vocab_size)
    builder = indexed_dataset.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    builder.data_file.write(ak.to_numpy(ak.flatten(documents)).astype(dtype).tobytes())
    builder.sequence_lengths = ak.to_numpy(ak.num(documents)).tolist()
    builder.document_indices = list(range(len(documents) + 1))
    builder.finalize(f"{prefix}.idx")


if __name__ == "__main__":
    main()
