"""Flags of the tokenizer and of the token files.

megatron/tokenizer/tokenizer.py, megatron/data/gpt_dataset.py and megatron/core/datasets of Megatron-LM;
parse_data_paths in megatron/arguments.py of bigscience's Megatron-DeepSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.alike import alike
from pretrain.tools.migrate.meanings.meaning import Carried, NoEffect, NotSupported, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_TYPES = "GPT2BPETokenizer is gpt2, those of Hugging Face are huggingface; others have to become a tokenizer.json"
_FILE = "a tokenizer.json of Hugging Face; of a folder or a model's name the one in it"
_PATHS = "one path is data.path, several with their weights are data.blend"
_MAPPED = "token files are always memory-mapped (mmap)"
_READ_AHEAD = "the operating system reads ahead"
_TOKENS = "a training reads tokens, as the builder of its token files wrote them"
_ABSENT_TYPE = "it belongs to a tokenizer that is not here"
_SHARES = "each token file is cut by the shares of data.split, and its parts cannot be named one by one"

TOKENIZER: dict[str, Meaning] = {
    "tokenizer_type": Carried(
        "tokenizer.type",
        {
            "GPT2BPETokenizer": "gpt2",
            "HFTokenizer": "huggingface",
            "HuggingFaceTokenizer": "huggingface",
            "PretrainedFromHF": "huggingface",
        },
        _TYPES,
    ),
    "vocab_file": Carried("tokenizer.vocab_file", how="of type gpt2"),
    "merge_file": Carried("tokenizer.merge_file", how="of type gpt2"),
    "tokenizer_model": Carried("tokenizer.file", how=_FILE, note="a tokenizer.json"),
    "tokenizer_name_or_path": Carried("tokenizer.file", how=_FILE, note="a tokenizer.json"),
    "vocab_size": NoEffect("the tokenizer's files say it"),
    "vocab_extra_ids": NoEffect("a GPT needs none"),
    "trust_remote_code": NoEffect("a tokenizer.json runs no code"),
    **alike(NoEffect("tokenizer.type and its files say it"), "metadata_path tokenizer_metadata legacy_tokenizer"),
    **alike(
        NoEffect(_TOKENS),
        """chat_template use_gigatoken tokenizer_hf_use_fast tokenizer_hf_no_use_fast
        tokenizer_hf_include_special_tokens tokenizer_hf_no_include_special_tokens
        tokenizer_sentencepiece_ignore_extra_whitespaces""",
    ),
    **alike(
        Unread(_ABSENT_TYPE),
        """tokenizer_sentencepiece_legacy tiktoken_pattern tiktoken_num_special_tokens tiktoken_special_tokens
        null_tokenizer_eod_id null_tokenizer_pad_id""",
    ),
    **alike(
        NotSupported("a tokenizer has the tokens of its files, and gets no others"),
        "special_tokens tokenizer_special_tokens",
    ),
}
"""Flags of the tokenizer."""

FILES: dict[str, Meaning] = {
    "data_path": Carried("data.path", how=_PATHS),
    "train_data_path": Carried("data.path", how=_PATHS),
    "aml_data_download_path": Carried("data.path", how="the folder that stands before each path of --data-path"),
    "split": Carried("data.split", how="0 for the shares that it leaves out; 969,30,1 by default"),
    "data_cache_path": Carried("data.cache_path"),
    "num_workers": Carried("data.num_workers"),
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
        "train_idx_path train_desc_path train_doc_idx_path train_sample_idx_path train_shuffle_idx_path",
    ),
}
"""Flags of the token files."""

SAMPLES: dict[str, Meaning] = {
    "eod_mask_loss": Carried("data.eod_mask_loss"),
    "reset_position_ids": Carried("data.reset_position_ids"),
    "reset_attention_mask": Carried(
        "data.reset_attention_mask",
        {True: True},
        "reset_attention_mask or dataloader_inter_document_masking",
        "here it always holds; fused attention of Megatron-LM does not look at the mask",
    ),
    "dataloader_inter_document_masking": Carried(
        "data.reset_attention_mask", {True: True}, "reset_attention_mask or dataloader_inter_document_masking"
    ),
    "create_attention_mask_in_dataloader": NoEffect("masks are made where they are used"),
    "dataloader_type": NotSupported(
        "samples come in the order of Megatron's single, or of data.index; there is no cyclic", ("single",)
    ),
    "repeated_dataloader": NotSupported("token files are repeated epoch by epoch, each in another order"),
    "return_data_index": NoEffect("nothing reads the numbers of samples"),
    "data_sharding": Unread("only the data loader of images reads it"),
    "allow_ambiguous_pad_tokens": NoEffect("token files have no padding"),
    "loss_on_targets_only": NotSupported("all tokens count in the loss, not those of targets alone"),
    "reweight_loss_based_on_position_frequency": NotSupported("all positions count alike in the loss"),
    "data_efficiency_curriculum_learning": NotSupported("samples have one length and a random order from the start"),
    "random_ltd": NotSupported("every layer computes all tokens: none are dropped"),
    "fim_data": NotSupported("no sample is rearranged for filling in the middle"),
    **alike(
        Unread("it belongs to fim_data"),
        """fim_rate fim_spm_rate fim_split_sample fim_fragment_rate fim_no_prefix fim_prefix_token fim_middle_token
        fim_suffix_token fim_pad_token fim_eod_token""",
    ),
}
"""Flags of the samples that are cut out of the token files."""

DATA = TOKENIZER | FILES | SAMPLES
"""All of them, by dest."""
