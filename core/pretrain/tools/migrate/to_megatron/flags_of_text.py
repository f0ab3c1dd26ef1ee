"""Flags of the tokenizer and the token files.

build_tokenizer (megatron/core/tokenizers/utils/build_tokenizer.py), get_blend_from_list
(megatron/core/datasets/utils.py), and GPTDataset.__getitem__ (megatron/core/datasets/gpt_dataset.py) for documents.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pretrain.tools.migrate.to_megatron.answer import NOTHING, Answer
from pretrain.tools.migrate.to_megatron.flag_words import given

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.tools.migrate.to_megatron.answer import Function

_BYTES = 257
"""Tokens of the type bytes: 256, and the last as the end of a document, as NullTokenizer has it."""


def tokenizer_type(recipe: Recipe) -> Answer:
    """Return the type; for bytes the one that reads no text, as a training needs none."""
    kind = recipe.tokenizer.type
    if kind == "gpt2":
        return Answer((given("tokenizer_type", "GPT2BPETokenizer"),))
    if kind == "huggingface":
        return Answer((given("tokenizer_type", "HuggingFaceTokenizer"),))
    flags = (given("tokenizer_type", "NullTokenizer"), given("vocab_size", _BYTES))
    return Answer(flags, "NullTokenizer stands in its place, which has the same ids and knows no text")


def vocab_file(recipe: Recipe) -> Answer:
    """Return GPT-2's vocabulary."""
    return _of_type(recipe, "gpt2", "vocab_file", recipe.tokenizer.vocab_file)


def merge_file(recipe: Recipe) -> Answer:
    """Return GPT-2's merges."""
    return _of_type(recipe, "gpt2", "merge_file", recipe.tokenizer.merge_file)


def tokenizer_file(recipe: Recipe) -> Answer:
    """Return the folder in which the tokenizer.json is; Hugging Face's classes read no file of another name."""
    file = recipe.tokenizer.file
    if file is None or recipe.tokenizer.type != "huggingface":
        return NOTHING
    path = PurePosixPath(file)
    folder = str(path.parent)
    if path.name == "tokenizer.json" and str(path) == file and not folder.endswith((".json", ".model")):
        return Answer((given("tokenizer_model", folder),))
    change = "Hugging Face's AutoTokenizer reads a folder in which the file is called tokenizer.json: put it into one"
    return Answer((given("tokenizer_model", file),), change)


def data_path(recipe: Recipe) -> Answer:
    """Return the one token file."""
    path = recipe.data.path
    return NOTHING if path is None else Answer((given("data_path", path),))


def blend(recipe: Recipe) -> Answer:
    """Return several token files, each after its weight."""
    if recipe.data.blend is None:
        return NOTHING
    words = [word for part in recipe.data.blend for word in (repr(part.weight), _not_a_flag(part.path))]
    return Answer((given("data_path", *words),))


def split(recipe: Recipe) -> Answer:
    """Return the shares, also where they are the default, which Megatron-LM warns of."""
    return Answer((given("split", ",".join(part.strip() for part in recipe.data.split.split(","))),))


def reset_attention_mask(recipe: Recipe) -> Answer:
    """Return the flag with which fused attention, too, sees one document; it starts positions again with each."""
    if not recipe.data.reset_attention_mask:
        return NOTHING
    if recipe.data.reset_position_ids or recipe.model.position_embedding_type == "rope":
        return Answer((given("dataloader_inter_document_masking"),))
    change = (
        "only unfused attention looks at the mask there; --dataloader-inter-document-masking would reset positions too"
    )
    return Answer((given("reset_attention_mask"),), change)


def _of_type(recipe: Recipe, kind: str, name: str, file: str | None) -> Answer:
    return NOTHING if file is None or recipe.tokenizer.type != kind else Answer((given(name, file),))


def _not_a_flag(path: str) -> str:
    return f"./{path}" if path.startswith("-") else path


TEXT_FUNCTIONS: Mapping[str, Function] = {
    "tokenizer.type": tokenizer_type,
    "tokenizer.vocab_file": vocab_file,
    "tokenizer.merge_file": merge_file,
    "tokenizer.file": tokenizer_file,
    "data.path": data_path,
    "data.blend": blend,
    "data.split": split,
    "data.reset_attention_mask": reset_attention_mask,
}
"""By key."""
