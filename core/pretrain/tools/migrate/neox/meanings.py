"""Meaning of every setting of GPT-NeoX, 2.0 and later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meaning import Ignored, NotSupported, alike, other_model
from pretrain.tools.migrate.neox import data, model, parallel, precision, running, training
from pretrain.tools.migrate.neox.data import CORPORA
from pretrain.tools.migrate.neox.model import ARCHITECTURE
from pretrain.tools.migrate.neox.objects import OBJECTS
from pretrain.tools.migrate.neox.parallel import PLACEMENT
from pretrain.tools.migrate.neox.running import OUTPUTS
from pretrain.tools.migrate.neox.training import STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function


ELSEWHERE: dict[str, Meaning] = {
    **dict.fromkeys(
        ("moe_num_experts", "num_experts"), other_model("every layer has one MLP, and no experts", unless=(1,))
    ),
    **alike(
        Ignored("it belongs to moe_num_experts"),
        """create_moe_param_group enable_expert_tensor_parallelism expert_interval moe_eval_capacity_factor
        moe_expert_interval moe_expert_parallel_size moe_glu moe_loss_coeff moe_min_capacity moe_token_dropping
        moe_train_capacity_factor moe_type moe_use_residual use_tutel moe_top_k moe_router_type moe_lbl_in_fp32
        moe_jitter_eps""",
    ),
    **alike(
        Ignored("it belongs to layers of Mamba"),
        """mamba_selective_scan_fusion mamba_causal_conv_fusion mamba_inner_func_fusion mamba_selective_fp32_params
        mamba_use_bias_in_conv mamba_use_bias_in_linears""",
    ),
    **dict.fromkeys(("dim_att", "head_size", "ffn_dim"), Ignored("it belongs to layers of RWKV")),
    "gmlp_attn_dim": Ignored("it belongs to layers of gMLP"),
    **alike(
        Ignored("it belongs to te_fp8_mha"),
        """te_fp8_format te_fp8_wgrad te_fp8_amax_history_len te_fp8_amax_compute_algo te_fp8_margin""",
    ),
    "train_impl": NotSupported("the next token is learned, not preferences or rewards", unless=("normal",)),
    **alike(
        Ignored("it belongs to train_impl"),
        """dpo_fp32 dpo_reference_free dpo_beta kto_fp32 kto_desirable_weight kto_undesirable_weight kto_beta z_loss
        fp32_reinforce kl_impl kl_div_beta reinforce_leave_one_out""",
    ),
    "precompute_model_name": Ignored("it belongs to train_impl"),
    "serve_model_weights": NotSupported("no other program is given the weights while they train", unless=(False,)),
    "weight_server_port": Ignored("it belongs to serve_model_weights"),
    "online_dataserver_ips": Ignored("it belongs to dataset_impl online"),
    "online_dataserver_ports": Ignored("it belongs to dataset_impl online"),
    **alike(
        Ignored("generate.py reads it, train.py does not"),
        """text_gen_type temperature top_p top_k return_logits maximum_tokens prompt_end sample_input_file
        sample_output_file num_samples recompute""",
    ),
    **dict.fromkeys(("eval_results_prefix", "eval_tasks"), Ignored("eval.py reads it, train.py does not")),
}

TABLES = (ARCHITECTURE, CORPORA, STEPS, PLACEMENT, OUTPUTS, ELSEWHERE, OBJECTS)

MEANINGS: Mapping[str, Meaning] = {name: meaning for table in TABLES for name, meaning in table.items()}
"""By name with underscores; a key of an object by its path, "optimizer.params.lr"."""

FUNCTIONS: Mapping[str, Function] = {
    key: found
    for part in (model, data, training, precision, parallel, running)
    for key, found in part.FUNCTIONS.items()
}
"""By key of the recipe."""

KEY_BY_KEY = {
    "bf16",
    "data_types",
    "fp16",
    "optimizer",
    "optimizer.params",
    "zero_optimization",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_param",
}
"""Objects of which every key has a meaning of its own, so that another key is a mistake."""


def meaning_of(name: str) -> Meaning | None:
    """Return the meaning of a setting, or of the object that holds it.

    Args:
        name: with underscores; a key of an object by its path.

    Returns:
        None for a name that GPT-NeoX does not have.
    """
    if name in MEANINGS:
        return MEANINGS[name]
    while "." in name:
        name = name.rpartition(".")[0]
        if name in KEY_BY_KEY:
            return None
        if name in MEANINGS:
            return MEANINGS[name]
    return None
