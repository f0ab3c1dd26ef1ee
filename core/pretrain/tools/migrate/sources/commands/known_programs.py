"""Python programs by name: those that are read, and those that train or do something else."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["gpt", "neox", "preprocessing", "other"]

_GPT = frozenset(("pretrain_gpt.py", "pretrain_gpt2.py", "pretrain_gpt_core.py"))
_OTHER = {
    "pretrain_bert.py": "trains BERT",
    "pretrain_bert_core.py": "trains BERT",
    "pretrain_t5.py": "trains T5",
    "pretrain_t5_core.py": "trains T5",
    "pretrain_albert.py": "trains ALBERT",
    "pretrain_ict.py": "trains a retriever",
    "pretrain_realm.py": "trains a retriever",
    "pretrain_retro.py": "trains Retro",
    "pretrain_retro_core.py": "trains Retro",
    "pretrain_mamba.py": "trains Mamba and hybrid models",
    "pretrain_hybrid.py": "trains Mamba and hybrid models",
    "pretrain_vlm.py": "trains vision-language models",
    "pretrain_mimo.py": "trains multimodal models",
    "pretrain_multimodal.py": "trains multimodal models",
    "pretrain_vit.py": "trains a vision transformer",
    "pretrain_vision_classify.py": "trains vision models",
    "pretrain_vision_inpaint.py": "trains vision models",
    "pretrain_vision_dino.py": "trains vision models",
    "pretrain_prefix_lm.py": "trains a prefix language model",
    "finetune_llama.py": "converts and fine-tunes a Hugging Face model",
    "finetune_t0_non_causal_decoder.py": "fine-tunes a prefix language model",
    "finetune_t0_causal_decoder.py": "fine-tunes on prompts and answers",
    "train_rl.py": "trains by reinforcement learning",
    "evaluate.py": "evaluates",
    "eval.py": "evaluates",
    "generate.py": "generates text",
}


def role_of(program: str, arguments: Sequence[str]) -> Role:
    """Return what a Python program is here.

    Args:
        program: its path.
        arguments: its arguments: train.py is GPT-NeoX's only with a YAML file, and deepy.py starts other programs too.
    """
    name = PurePosixPath(program).name
    if name == "deepy.py":
        started = next((PurePosixPath(word).name for word in arguments if word.endswith(".py")), "")
        return "neox" if started in {"train.py", "pretrain_gpt2.py"} else "other"
    if name == "train.py" or name in _GPT:
        neox = any(word.endswith((".yml", ".yaml")) for word in arguments) and "--yaml-cfg" not in arguments
        return "neox" if neox and not _has_flags(arguments) else ("gpt" if name in _GPT else "other")
    return "preprocessing" if name == "preprocess_data.py" else "other"


def _has_flags(arguments: Sequence[str]) -> bool:
    """Return whether there are flags of Megatron-LM's, which GPT-NeoX's programs do not take."""
    return any(word.startswith("--") and word != "--conf_dir" for word in arguments)


def reason_against(program: str, arguments: Sequence[str]) -> str:
    """Return a phrase that says why a program is not read: "pretrain_bert.py trains BERT"."""
    path = PurePosixPath(program)
    if path.name == "deepy.py":
        path = PurePosixPath(next((word for word in arguments if word.endswith(".py")), program))
    if path.name in _OTHER:
        return f"{path.name} {_OTHER[path.name]}"
    if "tasks" in path.parts:
        return f"{program} runs a downstream task"
    if "server" in path.stem or "generation" in path.stem:
        return f"{path.name} generates text"
    if "tools" in path.parts:
        return f"{program} is a tool"
    return f"{program} is not a program that is known here"
