"""Hugging Face's models of transformers: GPT-2, GPT-NeoX, Llama, Mistral (read only) and Qwen 2."""

from pretrain.tools.convert.dialects.hugging_face.reading import read
from pretrain.tools.convert.dialects.hugging_face.writing import write

__all__ = ["read", "write"]
