"""Decompression restores the content, of any size."""

import bz2
import gzip
import lzma

import pytest
import zstandard

from pretrain.tools.corpus.chunks import open_decompressed

PACKED = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstandard.compress}
MEBIBYTE = 1 << 20
"""Bytes decompressed per call: the end of the file may be known only at the next call."""


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("size", [0, 1, MEBIBYTE - 1, MEBIBYTE, MEBIBYTE + 1, 3 * MEBIBYTE])
@pytest.mark.parametrize("frames", [1, 2])
def test_files_that_become_much_larger(tmp_path, suffix, size, frames):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(PACKED[suffix](b"a" * size) * frames)
    with open_decompressed(path) as (stream, _):
        assert stream.read() == b"a" * size * frames
