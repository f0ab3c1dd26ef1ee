"""Ids of special tokens, and settings of generation, that a model of Hugging Face keeps when it becomes one again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.tools.convert.dialects.hugging_face.tokenizer_files import content_of
from pretrain.tools.convert.formats.hugging_face import CONFIG, NAME, json_object, own_file

if TYPE_CHECKING:
    from pretrain.tools.convert.weights.model_weights import ModelWeights

GENERATION = "generation_config.json"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def kept_ids(weights: ModelWeights) -> dict[str, Any]:
    """Return the ids in the source's config.json, which may be lists, or null; {} if nothing is kept.

    Raises:
        DamageError: it is no JSON.
    """
    config = json_object(weights.path / CONFIG) if _is_kept(weights) else {}
    return {name: config[name] for name in _IDS if name in config}


def kept_generation(weights: ModelWeights) -> bytes | None:
    """Return the source's generation_config.json; None if it has none, or nothing is kept.

    Raises:
        CheckpointError: it cannot be read, is too large, or a link out of its folder.
    """
    path = weights.path / GENERATION
    return content_of(own_file(path)) if _is_kept(weights) and path.is_file() else None


def _is_kept(weights: ModelWeights) -> bool:
    """Say whether the source is of Hugging Face; with another tokenizer its ids mean other tokens."""
    return weights.format.startswith(NAME) and all(file.parent == weights.path for file in weights.tokenizer)
