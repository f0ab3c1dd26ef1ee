"""Tokenizers: byte-level BPE in GPT-2's two files or Hugging Face's one, and plain bytes."""

from pretrain.data.tokenizers.load import load_tokenizer
from pretrain.data.tokenizers.tokenizer import Tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]
