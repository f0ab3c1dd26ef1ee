"""Small token files."""

from __future__ import annotations

import numpy as np

from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.data.token_files.writing import IndexPart, write_index


def write_tokens(prefix, ids):
    """Write one document of ids, uint16, as PREFIX.bin and PREFIX.idx; return the prefix."""
    tokens = np.asarray(ids, "<u2")
    prefix.parent.mkdir(parents=True, exist_ok=True)
    bin_path(prefix).write_bytes(tokens.tobytes())
    with idx_path(prefix).open("wb") as stream:
        write_index(stream, tokens.dtype, [IndexPart(np.array([tokens.size], "<i4"), np.array([1], "<i8"))])
    return prefix
