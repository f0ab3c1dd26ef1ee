"""Recipes that Megatron-LM's arguments can express, drawn by hypothesis.

Left out are values that come back in another form although they train the same: the folder `checkpoint.save: true`,
`save_interval: 0`, warm-ups of 0, and `manual_gc` and `tensorboard` where they are off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from pretrain.recipe.document import Document
from pretrain.recipe.load import make_effective

if TYPE_CHECKING:
    from pretrain.recipe.recipe import Recipe

Draw = Any
Tree = dict[str, Any]

_SMALL = st.floats(1e-6, 1e-2)
_SHARE = st.sampled_from([0.0, 0.1, 0.25, 0.5])
_PATH = st.sampled_from(["data/text", "/data/my text", "it's", "a$b", "weights/3"])
_COUNT = st.integers(1, 3000)


@st.composite
def recipes(draw: Draw) -> Recipe:
    """Draw a recipe."""
    layout, layers = draw(_layouts())
    tensor_size = layout["tensor_model_parallel_size"]
    model = draw(_models(layers, tensor_size))
    train = draw(_lengths())
    data = {
        "model": model,
        "tokenizer": draw(_tokenizers()),
        "data": draw(_data(model)),
        "train": train,
        **draw(_learning("samples" if "train_samples" in train else "iters", train)),
        "precision": draw(_precisions(per_token=train["calculate_per_token_loss"])),
        "parallel": layout,
        "recompute": draw(_recomputation()),
        "kernels": {"attention": draw(st.sampled_from(["auto", "flash", "softmax"]))},
        **draw(_outputs()),
    }
    return make_effective(Document("drawn", data))[0]


@st.composite
def _layouts(draw: Draw) -> tuple[Tree, int]:
    """Draw section parallel, and a number of layers that it can have."""
    stages, chunks, each = (
        draw(st.sampled_from([1, 2, 4])),
        draw(st.sampled_from([None, 2, 3])),
        draw(st.integers(1, 2)),
    )
    found: Tree = {
        "tensor_model_parallel_size": draw(st.sampled_from([1, 2])),
        "pipeline_model_parallel_size": stages,
        "sequence_parallel": draw(st.booleans()),
        "use_distributed_optimizer": draw(st.booleans()),
        "overlap_grad_reduce": draw(st.booleans()),
        "overlap_param_gather": draw(st.booleans()),
        "ddp_bucket_size": draw(st.none() | st.integers(1, 10**9)),
        "distributed_timeout_minutes": draw(st.integers(1, 90)),
    }
    if stages == 1:
        return found, draw(st.integers(1, 8))
    kind = draw(st.sampled_from(["even", "ends", "listed"]))
    if kind == "listed":
        listed = draw(st.lists(st.integers(1, 3), min_size=stages * (chunks or 1), max_size=stages * (chunks or 1)))
        found |= {"pipeline_layers": listed, "virtual_pipeline_model_parallel_size": chunks}
        return found | _messages(draw, stages, chunks), sum(listed)
    if kind == "ends":
        first = draw(st.integers(1, 3))
        found |= {"num_layers_in_first_pipeline_stage": first}
        return found, first + (stages - 1) * each
    found |= {"virtual_pipeline_model_parallel_size": chunks}
    return found | _messages(draw, stages, chunks), stages * (chunks or 1) * each


def _messages(draw: Draw, stages: int, chunks: int | None) -> Tree:
    """Return whether messages overlap, which two interleaved stages do always there."""
    return {} if chunks is None else {"overlap_p2p_comm": draw(st.booleans()) or stages == 2}


@st.composite
def _models(draw: Draw, layers: int, tensor_size: int) -> Tree:
    groups = tensor_size * draw(st.integers(1, 2))
    heads, size = groups * draw(st.integers(1, 3)), draw(st.sampled_from([4, 8, 64]))
    length = 8 * draw(st.integers(1, 200))
    scaling = draw(st.booleans())
    position = draw(st.sampled_from(["learned_absolute", "rope"]))
    rope = draw(_ropes()) if position == "rope" else {}  # without it no flag says how it is scaled
    return {
        **rope,
        "num_layers": layers,
        "hidden_size": heads * size,
        "num_attention_heads": heads,
        "num_query_groups": groups,
        "kv_channels": draw(st.sampled_from([size, 2 * size])),
        "ffn_hidden_size": draw(st.none() | st.sampled_from([64, 4 * heads * size, 640])),
        "seq_length": length,
        "max_position_embeddings": length + draw(st.sampled_from([0, 8])),
        "activation": draw(st.sampled_from(["gelu", "gelu_tanh", "swiglu"])),
        "position_embedding_type": position,
        "rotary_base": float(draw(st.integers(2, 10**7))),
        "normalization": draw(st.sampled_from(["LayerNorm", "RMSNorm"])),
        "layernorm_epsilon": draw(_SMALL),
        "add_bias_linear": draw(st.booleans()),
        "add_qkv_bias": draw(st.booleans()),
        "untie_embeddings_and_output_weights": draw(st.booleans()),
        "hidden_dropout": draw(_SHARE),
        "attention_dropout": draw(_SHARE),
        "init_method_std": draw(_SMALL),
        "apply_query_key_layer_scaling": scaling,
        "attention_softmax_in_fp32": scaling or draw(st.booleans()),
        "make_vocab_size_divisible_by": draw(st.sampled_from([1, 64, 128])),
    }


@st.composite
def _ropes(draw: Draw) -> Tree:
    """Draw how rope is scaled; Megatron-LM's YaRN rotates whole heads, and its linear scaling by 1 is none."""
    kind = draw(st.sampled_from(["", "llama3", "linear", "yarn"]))
    if kind != "yarn":
        factor = draw(st.sampled_from([2.0, 8.0, 32.0]))
        scaling = {"use_rope_scaling": True, "rope_scaling_type": kind, "rope_scaling_factor": factor} if kind else {}
        return {"rotary_percent": draw(st.sampled_from([1.0, 0.5])), **scaling}
    return {
        "use_rope_scaling": True,
        "rope_scaling_type": kind,
        "rope_scaling_factor": draw(st.sampled_from([2.0, 8.0, 40.0])),
        "original_max_position_embeddings": draw(st.sampled_from([16, 4096, 8192])),
        "yarn_beta_fast": draw(st.sampled_from([16.0, 32.0])),
        "yarn_beta_slow": draw(st.sampled_from([0.5, 1.0])),
        "yarn_attention_factor": draw(st.sampled_from([None, 1.0, 1.25])),
        "yarn_correction_range_round_to_int": draw(st.booleans()),
    }


@st.composite
def _tokenizers(draw: Draw) -> Tree:
    if draw(st.booleans()):
        return {"type": "gpt2", "vocab_file": draw(_PATH), "merge_file": draw(_PATH)}
    return {"type": "huggingface", "file": draw(st.sampled_from(["tokenizer.json", "a/tokenizer.json", "a/b c.json"]))}


@st.composite
def _data(draw: Draw, model: Tree) -> Tree:
    found: Tree = {
        "split": draw(st.sampled_from(["969,30,1", "1,1,0", "99.5,.25,.25"])),
        "cache_path": draw(st.none() | _PATH),
        "eod_mask_loss": draw(st.booleans()),
        "reset_position_ids": draw(st.booleans()),
        "reset_attention_mask": draw(st.booleans()),
        "num_workers": draw(st.integers(0, 8)),
    }
    part = st.fixed_dictionaries({"weight": st.floats(1e-3, 1e3), "path": _PATH})
    if draw(st.booleans()):
        return found | {"path": draw(_PATH)}
    return found | {"blend": draw(st.lists(part, min_size=1, max_size=3))}


@st.composite
def _lengths(draw: Draw) -> Tree:
    micro, steps = draw(st.integers(1, 4)), draw(st.integers(2, 6))
    found: Tree = {
        "micro_batch_size": micro,
        "global_batch_size": micro * steps,
        "calculate_per_token_loss": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**31 - 1)),
        "deterministic_mode": draw(st.booleans()),
        "manual_gc_interval": draw(_COUNT),
        "exit_interval": draw(st.none() | _COUNT),
        "check_replicas_interval": draw(st.none() | _COUNT),
        "iterations_to_skip": sorted(draw(st.sets(_COUNT, max_size=3))),
        "exit_duration_in_mins": draw(st.none() | _COUNT),
    }
    length = draw(st.integers(100, 10**9))
    if draw(st.booleans()):
        return found | {"train_iters": draw(st.sampled_from([0, length]))}
    rampup = draw(st.none() | st.just([micro, micro, draw(_COUNT)]))
    return found | {"train_samples": length, "rampup_batch_size": rampup}


@st.composite
def _learning(draw: Draw, unit: str, train: Tree) -> Tree:
    """Draw the sections of the optimizer and the schedule."""
    lr = draw(st.floats(1e-5, 1e-1))
    decay = draw(st.none() | st.integers(60, 10**9))
    style = draw(st.sampled_from(["constant", "linear", "cosine", "inverse-square-root", "WSD"]))
    wins = draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    schedule: Tree = {
        "lr_decay_style": style,
        "min_lr": lr * draw(_SHARE),
        "decoupled_min_lr": draw(st.sampled_from([None, lr / 4])),
        f"lr_decay_{unit}": decay,
        "lr_wsd_decay_style": draw(st.sampled_from(["exponential", "linear", "cosine", "minus_sqrt"])),
        "override_opt_param_scheduler": wins[0],
        "use_checkpoint_opt_param_scheduler": wins[1],
    } | ({f"lr_wsd_decay_{unit}": draw(st.integers(1, 30))} if style == "WSD" else {})
    warmup = draw(st.sampled_from([None, "fraction", unit]))
    if warmup == "fraction":
        schedule["lr_warmup_fraction"] = draw(_SHARE)
    elif warmup:
        schedule[f"lr_warmup_{unit}"] = draw(st.integers(1, 30))
    optimizer = {
        "lr": lr,
        "decoupled_lr": draw(st.sampled_from([None, lr, 2 * lr])),
        "adam_beta1": draw(_SHARE),
        "adam_beta2": draw(_SHARE),
        "adam_eps": draw(_SMALL),
        "weight_decay": draw(_SHARE),
        "clip_grad": draw(_SHARE),
    }
    return {"optimizer": optimizer, "schedule": schedule}


@st.composite
def _precisions(draw: Draw, *, per_token: bool) -> Tree:
    dtype = draw(st.sampled_from(["fp32", "bf16", "fp16"]))
    in_fp32 = per_token or draw(st.booleans())
    return {
        "dtype": dtype,
        **({} if dtype == "fp32" else {"grad_reduce_in_fp32": in_fp32}),
        "loss_scale": draw(st.none() | st.floats(1, 2**20)),
        "initial_loss_scale": draw(st.floats(1, 2**33)),
        "loss_scale_window": draw(_COUNT),
        "hysteresis": draw(st.integers(1, 4)),
        "min_loss_scale": draw(st.floats(0.5, 8)),
        "fp16_lm_cross_entropy": draw(st.booleans()),
    }


@st.composite
def _recomputation(draw: Draw) -> Tree:
    return {
        "granularity": draw(st.sampled_from(["none", "selective", "full"])),
        "method": draw(st.sampled_from(["uniform", "block"])),
        "num_layers": 1,
        "distribute_saved_activations": draw(st.booleans()),
    }


@st.composite
def _outputs(draw: Draw) -> Tree:
    """Draw the sections of checkpoints, evaluation, logging and profiles."""
    checkpoint = {
        "save": draw(st.just(False) | _PATH),
        "load": draw(st.none() | _PATH),
        "save_interval": draw(_COUNT),
        "async_save": draw(st.booleans()),
        "finetune": draw(st.booleans()),
    }
    logging = {
        "log_interval": draw(_COUNT),
        "tensorboard_queue_size": draw(_COUNT),
        "log_timers": draw(st.booleans()),
        "log_params_norm": draw(st.booleans()),
        "log_num_zeros_in_grad": draw(st.booleans()),
    }
    evaluation = {"interval": draw(st.sampled_from([0, 1, 500])), "iters": draw(_COUNT)}
    profile = {
        "start": 1,
        "steps": draw(st.integers(1, 5)),
        "ranks": draw(st.sampled_from([[0], [1, 3]])),
        "use_pytorch_profiler": draw(st.booleans()),
        "memory": draw(st.booleans()),
    }
    return {
        "checkpoint": checkpoint,
        "evaluation": evaluation,
        "logging": logging,
        "profile": draw(st.sampled_from([{}, profile])),
    }
