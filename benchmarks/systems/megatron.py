"""Plain megatron-core on the CPU: its local spec, its optimizer, its own kernels; the bridge only names the device."""

from __future__ import annotations

import sys
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.train_step import SHAPE, serve
from pretrain.bridge import megatron as bridge
from pretrain.plugins.manager import load

dtype, threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(threads)
bridge.install(load("cpu").backend)

from megatron.core import parallel_state  # noqa: E402  after the bridge
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402

torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel()
model_parallel_cuda_manual_seed(1)
config = TransformerConfig(
    num_layers=SHAPE["layers"],
    hidden_size=SHAPE["hidden"],
    num_attention_heads=SHAPE["heads"],
    hidden_dropout=0.0,
    attention_dropout=0.0,
    transformer_impl="local",
    gradient_accumulation_fusion=False,
    bf16=dtype == "bf16",
    params_dtype=torch_dtype,
    pipeline_dtype=torch_dtype,
)
vocab = -(-SHAPE["vocab"] // 128) * 128
model = GPTModel(config, get_gpt_layer_local_spec(), vocab, SHAPE["seq"], share_embeddings_and_output_weights=True)
if dtype == "bf16":
    model = Float16Module(config, model)
ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=dtype == "bf16")
model = DistributedDataParallel(config, ddp_config, model)
optimizer = get_megatron_optimizer(
    OptimizerConfig(lr=1e-4, weight_decay=0.1, clip_grad=1.0, bf16=dtype == "bf16", params_dtype=torch_dtype), [model]
)
config.finalize_model_grads_func = finalize_model_grads
config.grad_scale_func = optimizer.scale_loss
tokens = torch.randint(0, SHAPE["vocab"], (1, SHAPE["seq"] + 1), generator=torch.Generator().manual_seed(0))
positions = torch.arange(SHAPE["seq"])[None]
mask = torch.ones(1, 1, SHAPE["seq"], SHAPE["seq"], dtype=torch.bool).triu(1)


def mean(loss):
    loss = loss.float().mean()
    return loss, loss.detach().clone()


def forward(_batches, chunk):
    return chunk(tokens[:, :-1], positions, mask, labels=tokens[:, 1:].contiguous()), partial(mean)


def step() -> float:
    model.zero_grad_buffer()
    optimizer.zero_grad()
    (loss,) = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=None,
        model=[model],
        num_microbatches=1,
        seq_length=SHAPE["seq"],
        micro_batch_size=1,
        forward_only=False,
    )
    optimizer.step()
    return loss.item()


serve(step)
