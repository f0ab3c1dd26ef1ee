"""GPT-NeoX's checkpoints, and the layer files of Megatron-DeepSpeed's pipelines.

`global_step1000/layer_NN-model_TT-model_states.pt`, `mp_rank_XX_model_states.pt` (save_ds_checkpoint in
megatron/checkpointing.py, ckpt_layer_path in deepspeed/runtime/pipe/module.py), beside them or in them `configs/*.yml`;
without pipeline (pipe_parallel_size 0) the weights are in mp_rank_XX with names `sequential.NN.`.
"""

from pretrain.tools.convert.dialects.neox.reading import read
from pretrain.tools.convert.dialects.neox.writing import write

__all__ = ["read", "write"]
