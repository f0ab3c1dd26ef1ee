"""Flags of the tokenizer and of the token files.

megatron/tokenizer/tokenizer.py, megatron/data/gpt_dataset.py and megatron/core/datasets of Megatron-LM;
parse_data_paths in megatron/arguments.py of bigscience's Megatron-DeepSpeed.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pretrain.tools.migrate.meaning import Ignored, Mapped, NoEffect, NotSupported, alike, other_model
from pretrain.tools.migrate.megatron.model import position_embedding_type
from pretrain.tools.migrate.setting import Derived, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function, Settings


_TYPES = "GPT2BPETokenizer is gpt2, those of Hugging Face are huggingface; others have to become a tokenizer.json"
_FILE = "a tokenizer.json of Hugging Face; of a folder or a model's name the one in it"
_PATHS = "one path is data.path, several with their weights are data.blend"
_MAPPED = "token files are always memory-mapped (mmap)"
_READ_AHEAD = "the operating system reads ahead"
_TOKENS = "a training reads tokens, as the builder of its token files wrote them"
_ABSENT_TYPE = "it belongs to a tokenizer that is not here"
_SHARES = "each token file is cut by the shares of data.split, and its parts cannot be named one by one"

TOKENIZER: dict[str, Meaning] = {
    "tokenizer_type": Mapped(
        "tokenizer.type",
        {
            "GPT2BPETokenizer": "gpt2",
            "HFTokenizer": "huggingface",
            "HuggingFaceTokenizer": "huggingface",
            "PretrainedFromHF": "huggingface",
        },
        _TYPES,
    ),
    "vocab_file": Mapped("tokenizer.vocab_file", how="of type gpt2"),
    "merge_file": Mapped("tokenizer.merge_file", how="of type gpt2"),
    "tokenizer_model": Mapped("tokenizer.file", how=_FILE, note="a tokenizer.json"),
    "tokenizer_name_or_path": Mapped("tokenizer.file", how=_FILE, note="a tokenizer.json"),
    "vocab_size": NoEffect("the tokenizer's files say it"),
    "vocab_extra_ids": NoEffect("a GPT needs none"),
    "trust_remote_code": NoEffect("a tokenizer.json runs no code"),
    **alike(NoEffect("tokenizer.type and its files say it"), "metadata_path tokenizer_metadata legacy_tokenizer"),
    **alike(
        NoEffect(_TOKENS),
        """chat_template use_gigatoken tokenizer_hf_* tokenizer_sentencepiece_ignore_extra_whitespaces""",
    ),
    **alike(
        Ignored(_ABSENT_TYPE),
        "tokenizer_sentencepiece_legacy tiktoken_* null_tokenizer_*",
    ),
    **alike(
        NotSupported("a tokenizer has the tokens of its files, and gets no others"),
        "special_tokens tokenizer_special_tokens",
    ),
}
"""Flags of the tokenizer."""

FILES: dict[str, Meaning] = {
    "data_path": Mapped("data.path", how=_PATHS),
    "train_data_path": Mapped("data.path", how=_PATHS),
    "aml_data_download_path": Mapped("data.path", how="the folder that stands before each path of --data-path"),
    "split": Mapped("data.split", how="0 for the shares that it leaves out; 969,30,1 by default"),
    "data_cache_path": Mapped("data.cache_path"),
    "num_workers": Mapped("data.num_workers"),
    "valid_num_workers": NoEffect("data.num_workers counts for validation too"),
    "valid_data_path": NotSupported("validation text is a share of the training's token files: data.split"),
    "test_data_path": NotSupported("test text is a share of the training's token files: data.split"),
    **alike(
        NotSupported(_SHARES),
        """train_weighted_split_paths train_weighted_split_paths_path valid_weighted_split_paths
        valid_weighted_split_paths_path test_weighted_split_paths test_weighted_split_paths_path""",
    ),
    **alike(
        NotSupported("paths and weights are not read from a file of their own: write them into data.blend"),
        "data_args_path per_split_data_args_path",
    ),
    "mock_data": NotSupported("there are no made-up samples: name a token file, or data.corpus"),
    "phase_transition_iterations": NotSupported("the mixture of token files stays the same over the training"),
    "renormalize_blend_weights": NotSupported("the shares of a blend are those of its weights"),
    "mid_level_dataset_surplus": NotSupported(
        "of each part of a blend 0.5 % more samples than its share are prepared, or more where that is too few",
        (0.005,),
    ),
    "train_data_exact_num_epochs": NotSupported("token files are repeated as often as the training needs"),
    **alike(NoEffect(_MAPPED), "data_impl dataset_impl mmap_bin_files"),
    **alike(NoEffect(_READ_AHEAD), "mmap_warmup skip_mmap_warmup"),
    **alike(
        NoEffect("index files are the same however they are built and cached"),
        """per_dataset_sequences_path dataloader_fast_cache_load dataloader_defer_npy_index_mmap
        num_dataset_builder_threads""",
    ),
    **alike(
        NotSupported("token files are read from a file system, not from an object store"),
        "object_storage_cache_path s3_cache_path",
    ),
    "enable_msc": NotSupported("token files are read from a file system, not from an object store", (False,)),
    "disable_msc_deprecated": NoEffect("token files are read from a file system"),
    **alike(
        NotSupported("the order of the samples follows from data.index and train.seed, not from given index files"),
        """train_idx_path train_desc_path train_doc_idx_path train_sample_idx_path train_shuffle_idx_path""",
    ),
}
"""Flags of the token files."""

SAMPLES: dict[str, Meaning] = {
    "eod_mask_loss": Mapped("data.eod_mask_loss"),
    "reset_position_ids": Mapped("data.reset_position_ids"),
    "reset_attention_mask": Mapped(
        "data.reset_attention_mask",
        {True: True},
        "reset_attention_mask or dataloader_inter_document_masking",
        "here it always holds; fused attention of Megatron-LM does not look at the mask",
    ),
    "dataloader_inter_document_masking": Mapped(
        "data.reset_attention_mask", {True: True}, "reset_attention_mask or dataloader_inter_document_masking"
    ),
    "create_attention_mask_in_dataloader": NoEffect("masks are made where they are used"),
    "dataloader_type": NotSupported(
        "samples come in the order of Megatron's single, or of data.index; there is no cyclic", ("single",)
    ),
    "repeated_dataloader": NotSupported("token files are repeated epoch by epoch, each in another order"),
    "return_data_index": NoEffect("nothing reads the numbers of samples"),
    "data_sharding": Ignored("only the data loader of images reads it"),
    "allow_ambiguous_pad_tokens": NoEffect("token files have no padding"),
    "loss_on_targets_only": NotSupported("all tokens count in the loss, not those of targets alone"),
    "reweight_loss_based_on_position_frequency": NotSupported("all positions count alike in the loss"),
    "data_efficiency_curriculum_learning": NotSupported("samples have one length and a random order from the start"),
    "random_ltd": other_model("every layer computes all tokens: none are dropped"),
    "fim_data": NotSupported("no sample is rearranged for filling in the middle"),
    **alike(
        Ignored("it belongs to fim_data"),
        "fim_*",
    ),
}
"""Flags of the samples that are cut out of the token files."""

DATA = TOKENIZER | FILES | SAMPLES
"""All of them, by dest."""


_FROM_HUB = {"HuggingFaceTokenizer", "PretrainedFromHF", "HFTokenizer"}
_NAMED = ("tokenizer_model", "tokenizer_name_or_path", "vocab_file")


def tokenizer_type(settings: Settings) -> Derived:
    """Return the kind of tokenizer."""
    given = settings.value("tokenizer_type", "GPT2BPETokenizer")
    if given == "GPT2BPETokenizer":
        return Derived("gpt2", ("tokenizer_type",))
    if given in _FROM_HUB:
        return Derived("huggingface", ("tokenizer_type",))
    change = f"{given} is not offered; a tokenizer.json of the same vocabulary has to stand in its place"
    return Derived("huggingface", ("tokenizer_type",), lost=(("tokenizer_type", change),))


def vocab_file(settings: Settings) -> Derived | None:
    """Return GPT-2's vocabulary."""
    return _of_gpt2(settings, "vocab_file")


def merge_file(settings: Settings) -> Derived | None:
    """Return GPT-2's merges."""
    return _of_gpt2(settings, "merge_file")


def tokenizer_file(settings: Settings) -> Derived | None:
    """Return the tokenizer.json, which a model's name or folder stands for."""
    if tokenizer_type(settings).value == "gpt2":
        return None
    name = _file_name(settings)
    if not name:
        return Derived("data/tokenizer.json", ("tokenizer_type",), "to be put there: the source names no file")
    given = str(settings.value(name))
    if given.endswith(".json"):
        return Derived(given, (name,))
    folder = PurePosixPath(given).parent if PurePosixPath(given).suffix == ".model" else PurePosixPath(given)
    return Derived(str(folder / "tokenizer.json"), (name,), f"{given} has to be there as a tokenizer.json")


def data_path(settings: Settings) -> Derived | None:
    """Return the token file if there is one."""
    name, given = _paths(settings)
    return Derived(given[0], (name,)) if len(given) == 1 else None


def blend(settings: Settings) -> Derived | None:
    """Return several token files with their weights."""
    name, given = _paths(settings)
    if len(given) < 2:
        return None
    if not (is_weighted := len(given) % 2 == 0 and all(_is_number(weight) for weight in given[::2])):
        given = [part for path in given for part in ("1", path)]
    change = "token files without weights are mixed by their sizes there; here each has weight 1: write others"
    parts = [{"weight": float(weight), "path": path} for weight, path in zip(given[::2], given[1::2], strict=True)]
    return Derived(parts, (name,), lost=() if is_weighted else ((name, change),))


def split(settings: Settings) -> Derived | None:
    """Return the shares of training, validation and test; the source may leave out the last ones, and write 9/1/0."""
    if trains_on_all(settings):
        idle = (("split", "it cuts the files of --data-path alone"),)
        return Derived("100,0,0", ("train_data_path",), "its files are for training alone", idle=idle)
    given = settings.value("split")
    if given is None:
        return None
    parts = re.findall(r"[.0-9]+", str(given))  # also in quotes, as parse_and_normalize_split reads it
    return Derived(",".join(parts + ["0"] * (3 - len(parts))), ("split",))


def trains_on_all(settings: Settings) -> bool:
    """Say whether token files are named for training alone (blend_per_split of BlendedMegatronDatasetConfig)."""
    return not settings.value("data_path") and bool(settings.value("train_data_path"))


def reset_position_ids(settings: Settings) -> Derived | None:
    """Return whether positions start again after a document, of which rope takes no notice there."""
    name = "reset_position_ids"
    if settings.value(name) and position_embedding_type(settings).value == "rope":
        return unused(name, "rope counts from the beginning of the sequence")
    return Derived(bool(settings.value(name)), (name,))


def _of_gpt2(settings: Settings, name: str) -> Derived | None:
    if tokenizer_type(settings).value == "gpt2":
        given = settings.value(name)
        return None if given is None else Derived(given, (name,))
    why = f"the tokenizer {settings.value('tokenizer_type')} does not read it"
    return unused(name, why) if _file_name(settings) != name else None


def _file_name(settings: Settings) -> str:
    """Return the name of the setting that says where the tokenizer is; empty without one."""
    return next((name for name in _NAMED if settings.value(name) is not None), "")


def _paths(settings: Settings) -> tuple[str, list[str]]:
    name = next((name for name in ("data_path", "train_data_path") if settings.value(name)), "data_path")
    given: Any = settings.value(name, [])
    folder = settings.value("aml_data_download_path")
    parts = [str(part) for part in (given if isinstance(given, list) else str(given).split())]
    return name, [part if folder is None or _is_number(part) else f"{folder}/{part}" for part in parts]


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False


FUNCTIONS: Mapping[str, Function] = {
    "tokenizer.type": tokenizer_type,
    "tokenizer.vocab_file": vocab_file,
    "tokenizer.merge_file": merge_file,
    "tokenizer.file": tokenizer_file,
    "data.path": data_path,
    "data.blend": blend,
    "data.split": split,
    "data.reset_position_ids": reset_position_ids,
}
"""By key of the recipe."""
