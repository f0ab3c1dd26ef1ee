"""GPT-NeoX's settings of the tokenizer and of its token files (NeoXArgsTokenizer, NeoXArgsTraining)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.meaning import Carried, NoEffect, NotSupported, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_BLEND = "train_data_paths and train_data_weights make the list"
_HELD_OUT = "text for evaluation is a share of the training files (data.split), so that nothing is evaluated here"
_OF_PATHS = "it belongs to paths that have no equivalent"
_LABELS = "labels are the next tokens of the text itself"
_PAIRS = "there is no training on preferred and rejected text"

CORPORA: dict[str, Meaning] = {
    "tokenizer_type": Carried(
        "tokenizer.type",
        values={"GPT2BPETokenizer": "gpt2", "HFTokenizer": "huggingface"},
        how="byte-level BPE of GPT-2 and tokenizer.json are offered",
    ),
    "vocab_file": Carried("tokenizer.vocab_file", how="tokenizer.file with HFTokenizer"),
    "merge_file": Carried("tokenizer.merge_file", how="with GPT2BPETokenizer"),
    "data_path": Carried("data.path", how="without train_data_paths"),
    "train_data_paths": Carried("data.blend", how=_BLEND),
    "train_data_weights": Carried("data.blend", how=_BLEND),
    "split": Carried("data.split", how="with data_path; all text of train_data_paths is for training"),
    "num_workers": Carried("data.num_workers"),
    "eod_mask_loss": Carried("data.eod_mask_loss"),
    "valid_data_paths": NotSupported(_HELD_OUT, unless=(None,)),
    "test_data_paths": NotSupported(_HELD_OUT, unless=(None,)),
    "valid_data_weights": Unread(_OF_PATHS),
    "test_data_weights": Unread(_OF_PATHS),
    "weight_by_num_documents": NotSupported(
        "data.blend's weights are taken, where GPT-NeoX takes the numbers of documents", unless=(False,)
    ),
    "weighted_sampler_alpha": Unread("it belongs to weight_by_num_documents"),
    "data_impl": NotSupported("token files are memory-mapped; write them again with mmap", unless=("infer", "mmap")),
    "pack_impl": NotSupported("documents are joined and cut into sequences of full length", unless=("packed",)),
    "allow_chopped": NoEffect("documents are joined and cut, as with pack_impl packed, which ignores it too"),
    "dataset_impl": NotSupported("samples are read from token files of a GPT", unless=("gpt2",)),
    "mmap_warmup": NoEffect("the operating system reads ahead"),
    "use_shared_fs": NotSupported("index files are written once, so that all nodes need to see them", unless=(True,)),
    "short_seq_prob": Unread("it is BERT's"),
    **dict.fromkeys(
        (
            "label_data_paths",
            "train_label_data_paths",
            "valid_label_data_paths",
            "test_label_data_paths",
        ),
        NotSupported(_LABELS, unless=(None,)),
    ),
    **dict.fromkeys(
        (
            "train_reward_data_paths",
            "valid_reward_data_paths",
            "test_reward_data_paths",
            *(
                f"{side}_{split}{kind}_data_paths"
                for side in ("pos", "neg")
                for split in ("train", "valid", "test")
                for kind in ("", "_label")
            ),
        ),
        NotSupported(_PAIRS, unless=(None,)),
    ),
}
