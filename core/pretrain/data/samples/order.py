"""Check that a change of the training's length keeps the order of the samples, for `data.index: megatron`.

Megatron shuffles the samples of all epochs of a training together: within one epoch the order does not depend on the
length, beyond one epoch it does (data/samples/megatron_index.py).
"""

from __future__ import annotations

import hashlib
from typing import Any

from pretrain.errors import DataError

_COMPARED = 4096
"""Number of compared entries of each index; different shuffles differ in them."""


def order_of(train: Any, samples: int) -> dict[str, Any]:
    """Return the number of samples of a training, and a digest of their order, for a checkpoint to hold."""
    digest = hashlib.blake2b(digest_size=16)
    for part in getattr(train, "datasets", [train]):
        for index in (part.document_index, part.shuffle_index):
            digest.update(len(index).to_bytes(8, "little") + index[:_COMPARED].tobytes())
    return {"samples": samples, "digest": digest.hexdigest()}


def require_same_order(saved: dict[str, Any], ours: dict[str, Any]) -> None:
    """Check that a resumed training keeps the order of the samples.

    Raises:
        DataError: it would read samples a second time before others have been read once.
    """
    if saved["samples"] == ours["samples"] or saved["digest"] == ours["digest"]:
        return
    msg = (
        f"the training reads {ours['samples']} samples, the checkpoint's read {saved['samples']} (train_iters, "
        "train_samples, global_batch_size): beyond one epoch data.index: megatron reshuffles them, and samples would "
        "repeat.\nRestore the length; or set data.index: native, whose order no length changes "
        "(from here on: some samples of this epoch may come again)."
    )
    raise DataError(msg)
