"""DeepSpeed's own files, without pipeline layers: weights and ZeRO's shards of any stage, and universal checkpoints."""

from pretrain.tools.convert.dialects.deepspeed.reading import read
from pretrain.tools.convert.dialects.deepspeed.writing import write

__all__ = ["read", "write"]
