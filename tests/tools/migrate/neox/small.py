"""A small GPT-NeoX, of which the tests state settings."""

from __future__ import annotations

from pretrain.tools.migrate.programs import Flag, Program

DEFAULTS = {
    "activation": "gelu",
    "attention_config": None,
    "bias_gelu_fusion": False,
    "checkpoint_activations": False,
    "checkpoint_factor": None,
    "checkpoint_num_layers": 1,
    "checkpoint_scale": "linear",
    "eval_interval": 1000,
    "eval_iters": 100,
    "fp32_allreduce": False,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "init_method": "normal",
    "layernorm_epsilon": 1e-5,
    "lr_decay_fraction": None,
    "lr_decay_iters": None,
    "lr_decay_style": "linear",
    "min_lr": 0.0,
    "mlp_multiple_of": 1,
    "model_parallel_size": 1,
    "norm": "layernorm",
    "num_nodes": -1,
    "output_layer_init_method": "scaled_normal",
    "pipe_parallel_size": 0,
    "pos_emb": "learned",
    "rms_norm_epsilon": 1e-8,
    "rotary_emb_base": 10000,
    "rotary_pct": 1.0,
    "save": None,
    "split": "969, 30, 1",
    "tokenizer_type": "GPT2BPETokenizer",
    "use_bias_in_attn_linear": True,
    "use_bias_in_mlp": True,
    "weight_decay": 0.1,
}


def small_neox(*, version="2026.05"):
    """Return a program with these defaults that behaves as a version does."""
    flags = {name: Flag(name, (name,), "str", default) for name, default in DEFAULTS.items()}
    return Program(f"gpt-neox-{version}", f"GPT-NeoX {version}", "neox", flags, flags)
