"""Sections `data` and `tokenizer`: the token files, how they are mixed and cut, and how text becomes tokens."""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from pretrain.recipe.section import Bool, Float, Int, LocalPath, Section, Str, TokenPath, shown
from pretrain.tokenizer_types import TokenizerType, tokenizer_type

_NUMBER = r"(\d+(\.\d*)?|\.\d+)"
_SHARES = rf"^\s*{_NUMBER}(\s*,\s*{_NUMBER}){{0,2}}\s*$"


def _as_text(given: object) -> object:
    """Take a single share, which YAML reads as a number, as the text that it was."""
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


class CorpusSection(Section):
    """Corpus from which absent token files are built."""

    source: Literal["python_stdlib"]
    """python_stdlib: the source text of this machine's Python standard library, one file a document."""
    max_bytes: Int | None = Field(default=None, gt=0)
    """At most this much text, in bytes; by default all of it."""


class BlendPart(Section):
    """One of several token files that are mixed."""

    weight: Float = Field(gt=0)
    """Share of the samples, relative to the other weights."""
    path: TokenPath
    """Token file without its .bin or .idx."""


def _as_blend(given: object) -> object:
    """Take a path as the one token file of a blend."""
    if isinstance(given, str):
        return [{"weight": 1.0, "path": given}]
    is_list = isinstance(given, list | tuple) and all(isinstance(part, dict | BlendPart) for part in given)
    if given is not None and not is_list:
        msg = f"{shown(given)} is neither a path nor a list of {{weight, path}}."
        raise ValueError(msg)
    return given


_Blend: TypeAlias = tuple[BlendPart, ...]
_OwnFiles = Annotated[_Blend, BeforeValidator(_as_blend, json_schema_input_type=TokenPath | _Blend)]


class DataSection(Section):
    """The token files, how they are mixed, and how they are cut into sequences."""

    path: TokenPath | None = None
    """Token file without its .bin or .idx, relative to the working directory; one at s3:// or gs:// is copied to each
    node."""
    blend: tuple[BlendPart, ...] | None = None
    """Several token files instead of one: a list of {weight, path}."""
    train_data_path: _OwnFiles | None = None
    """Token file, or a list of {weight, path}, for training alone; with it there is no path, blend or split."""
    valid_data_path: _OwnFiles | None = None
    """Token file, or a list of {weight, path}, for validation alone."""
    test_data_path: _OwnFiles | None = None
    """Token file, or a list of {weight, path}, for the test alone."""
    corpus: CorpusSection | None = None
    """What the token file (and the tokenizer) is built from if it is absent: {source, max_bytes}."""
    split: Annotated[Str, BeforeValidator(_as_text)] = Field(default="969,30,1", pattern=_SHARES)
    """Shares of the documents for training, validation and test, relative to their sum; a share that is left out is
    0."""
    split_by: Literal["documents", "tokens"] = "documents"
    """What `split` counts. documents: a split begins with a document, as in Megatron-LM; tokens: it begins with any
    token, so that one long document can be divided (with data.index: native)."""
    index: Literal["megatron", "native"] = "megatron"
    """Order of the samples. megatron: Megatron-LM's, from index files that rank 0 builds; native: computed without
    index files; the blend may change at a resume."""
    cache_path: LocalPath | None = None
    """Folder for the sample indices; by default beside the token file."""
    eod_mask_loss: Bool = False
    """Whether the end-of-document token is left out of the loss."""
    reset_position_ids: Bool = False
    """Whether positions start again after each document."""
    reset_attention_mask: Bool = False
    """Whether a token sees only its own document of a sequence."""
    num_workers: Int = Field(default=1, ge=0)
    """Processes per rank that read data; 0 reads in the training process."""

    @property
    def own_files(self) -> tuple[_Blend, _Blend, _Blend] | None:
        """The files of training, validation and test, () for one without; None if `split` divides common files."""
        named = (self.train_data_path, self.valid_data_path, self.test_data_path)
        return None if named == (None, None, None) else tuple(blend or () for blend in named)  # type: ignore[return-value]

    @property
    def common_files(self) -> _Blend:
        """The files that `split` divides."""
        return self.blend or () if self.path is None else (BlendPart(weight=1.0, path=self.path),)

    @property
    def splits(self) -> tuple[_Blend, _Blend, _Blend]:
        """The files that training, validation and test read; () for one that has no text."""
        train, valid, test = (self.common_files if share > 0 else () for share in self.shares)
        return self.own_files or (train, valid, test)

    @property
    def token_files(self) -> list[str]:
        """The path of every token file, in the order in which they are named; of one that is named twice, twice."""
        return [part.path for part in (self.common_files if self.own_files is None else sum(self.own_files, ()))]

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Begin and end of training, validation and test, as shares of their files."""
        if self.own_files is not None:
            return [(0.0, 1.0)] * 3
        ends = list(accumulate(self.shares))
        return list(zip([0.0, *ends], ends, strict=False))

    @property
    def shares(self) -> tuple[float, float, float]:
        """The shares of training, validation and test in `split`, which sum to 1."""
        train, valid, test = [*(float(part) for part in self.split.split(",")), 0.0, 0.0][:3]
        total = train + valid + test or 1.0  # 0,0,0: refused later, because no split has a document
        return train / total, valid / total, test / total


def _type(given: object) -> object:
    return tokenizer_type(given) if isinstance(given, str) else given


class TokenizerSection(Section):
    """Tokenizer of the text. Paths are relative to the working directory."""

    type: Annotated[TokenizerType, BeforeValidator(_type)]
    """gpt2 (byte-level BPE of vocab_file and merge_file), huggingface (one json) or bytes (no files); GPT2BPETokenizer
    and HFTokenizer mean the first two."""
    vocab_file: LocalPath | None = None
    """GPT-2's vocab.json, for type gpt2."""
    merge_file: LocalPath | None = None
    """GPT-2's merges.txt, for type gpt2."""
    file: LocalPath | None = None
    """A tokenizer.json of Hugging Face, for type huggingface."""
    vocab_size: Int | None = Field(default=None, gt=256)
    """Number of tokens of the tokenizer that is trained on data.corpus if `file` is absent."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the section names; none for bytes."""
        return tuple(file for file in (self.vocab_file, self.merge_file, self.file) if file is not None)

    @model_validator(mode="before")
    @classmethod
    def _file_of_gpt_neox(cls, given: Any) -> Any:
        """Read vocab_file as file: GPT-NeoX's key of a tokenizer.json."""
        if not isinstance(given, dict) or given.get("file") is not None or given.get("vocab_file") is None:
            return given
        try:
            named = tokenizer_type(str(given.get("type")))
        except ValueError:  # a wrong type has its own error
            return given
        if named != "huggingface":
            return given
        rest = {key: value for key, value in given.items() if key != "vocab_file"}
        return {**rest, "file": given["vocab_file"]}
