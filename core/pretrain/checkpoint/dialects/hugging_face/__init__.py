"""Hugging Face's models of transformers: GPT-2, GPT-NeoX, Llama, Mistral (read only) and Qwen 2."""

from pretrain.checkpoint.dialects.hugging_face.reading import read
from pretrain.checkpoint.dialects.hugging_face.writing import write

__all__ = ["read", "write"]
