"""Plain megatron-core, its optimizer, its own kernels; off CUDA the bridge names the device.

On a GPU with Transformer Engine by its spec, as Megatron-LM trains; elsewhere by the local one.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import torch
import torch.distributed as dist

from benchmarks.training.setting import Setting
from benchmarks.training.train_step import serve
from pretrain.bridge import megatron as bridge
from pretrain.plugins import installed
from pretrain.plugins.host.manager import load

setting = Setting.given()
backend = load(setting.backend).backend
bridge.install(backend)

from megatron.core import parallel_state  # noqa: E402  after the bridge
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel, gpt_layer_specs  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402

device = torch.device(setting.backend)
on_gpu = device.type == "cuda"
has_engine = on_gpu and find_spec("transformer_engine") is not None
has_extensions = find_spec("fused_weight_gradient_mlp_cuda") is not None
torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[setting.dtype]
dist.init_process_group(backend.process_group, store=dist.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel()
model_parallel_cuda_manual_seed(1)
config = TransformerConfig(
    num_layers=setting["layers"],
    hidden_size=setting["hidden"],
    num_attention_heads=setting["heads"],
    hidden_dropout=0.0,
    attention_dropout=0.0,
    transformer_impl="transformer_engine" if has_engine else "local",
    # What Megatron-LM switches on by itself on a GPU: the first two are compiled, the others need apex's extensions;
    # the last is Transformer Engine's own where it is.
    bias_activation_fusion=on_gpu,
    bias_dropout_fusion=on_gpu,
    masked_softmax_fusion=on_gpu and find_spec("scaled_upper_triang_masked_softmax_cuda") is not None,
    gradient_accumulation_fusion=has_engine or (on_gpu and has_extensions),
    bf16=torch_dtype is torch.bfloat16,
    params_dtype=torch_dtype,
    pipeline_dtype=torch_dtype,
)
if has_engine:
    spec = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec()
    about = {"spec": f"Transformer Engine's, {installed.provider('transformer_engine')}"}
else:
    spec = gpt_layer_specs.get_gpt_layer_local_spec()
    about = {"spec": "local", "no_rival": "none: megatron-core has its local spec only, without Transformer Engine"}
vocab = setting.padded_vocab
model = GPTModel(config, spec, vocab, setting["seq"], share_embeddings_and_output_weights=True).to(device)
if torch_dtype is torch.bfloat16:
    model = Float16Module(config, model)
ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=torch_dtype is torch.bfloat16)
model = DistributedDataParallel(config, ddp_config, model)
optimizer = get_megatron_optimizer(
    OptimizerConfig(
        lr=1e-4, weight_decay=0.1, clip_grad=1.0, bf16=torch_dtype is torch.bfloat16, params_dtype=torch_dtype
    ),
    [model],
)
config.finalize_model_grads_func = finalize_model_grads
config.grad_scale_func = optimizer.scale_loss
batches = [tokens.to(device) for tokens in setting.batches()]
positions = torch.arange(setting["seq"], device=device).expand(setting.micro_batch_size, -1)
mask = None  # Transformer Engine's attention knows that it is causal
if not has_engine:
    mask = torch.ones(1, 1, setting["seq"], setting["seq"], dtype=torch.bool, device=device).triu(1)


def mean(loss):
    loss = loss.float().mean()
    return loss, loss.detach().clone()


def forward(batches, chunk):
    tokens = next(batches)
    return chunk(tokens[:, :-1], positions, mask, labels=tokens[:, 1:].contiguous()), partial(mean)


def step() -> float:
    model.zero_grad_buffer()
    optimizer.zero_grad()
    losses = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=iter(batches),
        model=[model],
        num_microbatches=len(batches),
        seq_length=setting["seq"],
        micro_batch_size=setting.micro_batch_size,
        forward_only=False,
    )
    optimizer.step()
    return torch.stack(losses).mean().item()


serve(step, about)
