"""Megatron-LM's checkpoints of before torch_dist: a file for each tensor- and pipeline-parallel rank.

`release/` or `iter_0000000/`, in it `mp_rank_TT[_PPP]/model_optim_rng.pt` (get_checkpoint_name and generate_state_dict
in megatron/training/checkpointing.py).
"""

from pretrain.tools.convert.dialects.megatron.reading import read
from pretrain.tools.convert.dialects.megatron.writing import write

__all__ = ["read", "write"]
