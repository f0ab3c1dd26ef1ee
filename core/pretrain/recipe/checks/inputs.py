"""Input files of a run: the tokenizer's and the token files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe.recipe import Recipe

_FILES_OF_TYPE = {"gpt2": ("vocab_file", "merge_file"), "huggingface": ("file",), "bytes": ()}


def problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield missing and superfluous keys of input files."""
    yield from _tokenizer(recipe)
    yield from _data(recipe)


def _tokenizer(recipe: Recipe) -> Iterator[Problem]:
    tokenizer = recipe.tokenizer
    for key in _FILES_OF_TYPE[tokenizer.type]:
        if getattr(tokenizer, key) is None:
            yield Problem(f"tokenizer.{key}", f"required with tokenizer.type: {tokenizer.type}.")
    if tokenizer.type == "huggingface" and recipe.data.corpus is not None and tokenizer.vocab_size is None:
        yield Problem("tokenizer.vocab_size", "required with data.corpus, on which the tokenizer is trained.")


def _data(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data
    if data.path is None and not data.blend:
        yield Problem("data.path", "required, or data.blend: [{weight: 1, path: ...}, ...].")
    if data.path is not None and data.blend is not None:
        yield Problem("data.blend", "given beside data.path; choose one.")
    if data.corpus is not None and data.blend is not None:
        yield Problem("data.corpus", "this builds one token file: give data.path instead of data.blend.")
    train, valid, _ = data.shares
    if train == 0 and recipe.train.train_iters != 0:
        yield Problem("data.split", f"{data.split} leaves no document for training.")
    if valid == 0 and recipe.evaluation.interval > 0:
        yield Problem("data.split", f"{data.split} leaves no document for validation; or set evaluation.interval: 0.")
