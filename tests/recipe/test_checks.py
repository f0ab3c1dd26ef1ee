"""Keys that must fit together."""

from __future__ import annotations

import pytest

ROPE = "model.position_embedding_type=rope"
YARN = (ROPE, "model.use_rope_scaling=true", "model.rope_scaling_type=yarn")
FILES_MISSING = "data.path: required, or data.train_data_path, or data.blend: [{weight: 1, path: ...}, ...]."
SAMPLES = "train.train_samples=5000"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.num_attention_heads=3"], "model.num_attention_heads: 3 does not divide model.hidden_size 64."),
        (
            ["precision.fp8=rowwise", "precision.dtype=fp16"],
            (
                "precision.fp8: rowwise needs precision.dtype: bf16 or fp32: fp16's 5 bits of exponent cannot hold fp8 "
                "times its scale."
            ),
        ),
        (
            ["precision.fp8=block"],
            "model.hidden_size: 64 does not give multiples of 128, which precision.fp8: block needs. Nearest: 128.",
        ),
        (
            ["precision.fp8=mxfp8", "model.ffn_hidden_size=100", "parallel.tensor_model_parallel_size=2"],
            (
                "model.ffn_hidden_size: 100 does not give multiples of 32 on each of 2 ranks, which precision.fp8: "
                "mxfp8 needs. Nearest: 128."
            ),
        ),
        (
            ["precision.fp8=mxfp8", "parallel.tensor_model_parallel_size=4", "model.ffn_hidden_size=128"],
            (
                "model.kv_channels: 16, for 4 heads and 4 query groups, does not give multiples of 32 on each of 4 "
                "ranks, which precision.fp8: mxfp8 needs. Nearest: 32."
            ),
        ),
        (["model.num_query_groups=3"], "model.num_query_groups: 3 does not divide model.num_attention_heads 4."),
        (["model.max_position_embeddings=16"], "model.max_position_embeddings: 16 is less than model.seq_length 32."),
        (
            [ROPE, "model.rotary_percent=0.2"],
            "model.rotary_percent: 0.2 of head size 16 is 3; rope needs an even number.",
        ),
        (
            [ROPE, "model.use_rope_scaling=true", "model.rope_low_freq_factor=4"],
            "model.rope_high_freq_factor: 4.0 is not more than model.rope_low_freq_factor 4.0.",
        ),
        (
            [*YARN, "model.yarn_beta_slow=32"],
            "model.yarn_beta_fast: 32.0 is not more than model.yarn_beta_slow 32.0.",
        ),
        (
            [*YARN, "model.rotary_base=1"],
            "model.rotary_base: 1.0 must be more than 1 with rope_scaling_type yarn.",
        ),
        (
            [*YARN[:2], "model.rope_scaling_type=dynamic", "model.kv_channels=2"],
            "model.rope_scaling_type: dynamic needs more than 2 dimensions of a head that rope rotates.",
        ),
        (
            [*YARN[:2], "model.rope_scaling_type=linear", "model.original_max_position_embeddings=64"],
            (
                "model.original_max_position_embeddings: no effect here; it needs model.use_rope_scaling: true and "
                "model.rope_scaling_type: llama3 or dynamic or yarn."
            ),
        ),
        (
            [ROPE, "model.use_rope_scaling=true", "model.rope_scaling_factor=0.5"],
            "model.rope_scaling_factor: 0.5 must be at least 1.",
        ),
        (
            ["parallel.context_parallel_size=3"],
            "parallel.context_parallel_size: 3: model.seq_length 32 is not a multiple of 2 x 3 = 6.",
        ),
        (
            [
                "parallel.context_parallel_size=8",
                "parallel.tensor_model_parallel_size=4",
                "parallel.sequence_parallel=true",
            ],
            "32 is not a multiple of 2 x 8 x tensor_model_parallel_size 4 = 64.",
        ),
        (
            ["kernels.compile=layer", "data.reset_attention_mask=true"],
            "kernels.compile: layer conflicts with data.reset_attention_mask: documents' lengths change at every step.",
        ),
        (
            ["model.apply_query_key_layer_scaling=true", "model.attention_softmax_in_fp32=false"],
            "model.attention_softmax_in_fp32: must be true with model.apply_query_key_layer_scaling.",
        ),
        (
            ["parallel.tensor_model_parallel_size=8"],
            "parallel.tensor_model_parallel_size: 8 does not divide model.num_attention_heads 4.",
        ),
        (
            ["parallel.tensor_model_parallel_size=4", "model.num_query_groups=2"],
            "parallel.tensor_model_parallel_size: 4 does not divide model.num_query_groups 2.",
        ),
        (
            ["parallel.tensor_model_parallel_size=4", "model.ffn_hidden_size=98"],
            "parallel.tensor_model_parallel_size: 4 does not divide model.ffn_hidden_size 98.",
        ),
        (
            ["parallel.tensor_model_parallel_size=4", "parallel.sequence_parallel=true", "model.seq_length=30"],
            "model.seq_length 30, along which sequence_parallel splits.",
        ),
        (
            ["parallel.pipeline_model_parallel_size=4"],
            "parallel.pipeline_model_parallel_size: 4 does not divide model.num_layers 2.",
        ),
        (
            ["parallel.pipeline_model_parallel_size=4", "model.num_layers=22"],
            "Give parallel.pipeline_layers, the layers of every stage, such as [5, 6, 6, 5].",
        ),
        (
            [
                "parallel={pipeline_model_parallel_size: 2, virtual_pipeline_model_parallel_size: 2}",
                "model.num_layers=7",
            ],
            "Give parallel.pipeline_layers, the layers of every chunk, such as [2, 2, 2, 1].",
        ),
        (
            [
                "parallel={pipeline_model_parallel_size: 2, num_layers_in_first_pipeline_stage: 3}",
                "parallel.num_layers_in_last_pipeline_stage=2",
            ],
            "parallel.num_layers_in_first_pipeline_stage: 3 and 2 sum to 5 layers, not model.num_layers 2.",
        ),
        (
            ["parallel={pipeline_model_parallel_size: 2, pipeline_layers: [1, 2]}"],
            "parallel.pipeline_layers: [1, 2] sum to 3 layers, not model.num_layers 2.",
        ),
        (
            ["parallel={pipeline_model_parallel_size: 2, pipeline_layers: [2]}"],
            "parallel.pipeline_layers: 1 numbers for pipeline_model_parallel_size 2; give 2.",
        ),
        (
            [
                "model.num_layers=7",
                "parallel={pipeline_model_parallel_size: 2, pipeline_layers: [3, 4]}",
                "parallel.virtual_pipeline_model_parallel_size=2",
            ],
            "2 numbers for pipeline_model_parallel_size 2 x virtual_pipeline_model_parallel_size 2; give 4.",
        ),
        (
            [
                "parallel={pipeline_model_parallel_size: 2, pipeline_layers: [1, 1]}",
                "parallel.num_layers_in_last_pipeline_stage=1",
            ],
            "stage or parallel.num_layers_in_last_pipeline_stage, which it includes; choose one.",
        ),
        (
            ["model.num_layers=8", "parallel={pipeline_model_parallel_size: 4, num_layers_in_first_pipeline_stage: 1}"],
            "which cannot share them equally. Give parallel.pipeline_layers, the layers of every stage.",
        ),
        (
            ["parallel={pipeline_model_parallel_size: 2, virtual_pipeline_model_parallel_size: 2}"],
            "2 does not divide the 1 layers of a stage. Give parallel.pipeline_layers, the layers of every chunk.",
        ),
        (
            ["parallel.pipeline_model_parallel_size=2", "recompute={granularity: full, num_layers: 2}"],
            "recompute.num_layers: 2 is more than the 1 layers of one stage.",
        ),
        (
            ["model.num_layers=3", "recompute={granularity: full, num_layers: 2}"],
            "num_layers: 2 does not divide the 3 layers of a stage; recompute.method: block takes any number.",
        ),
        (
            [
                "model.num_layers=5",
                "parallel={pipeline_model_parallel_size: 2, pipeline_layers: [2, 3]}",
                "recompute={granularity: full, num_layers: 2}",
            ],
            "does not divide the 3 layers of a stage; recompute.method: block takes any number.",
        ),
        (
            ["train.calculate_per_token_loss=true", "precision={dtype: bf16, grad_reduce_in_fp32: false}"],
            "with bf16: gradients are summed over tokens before they are divided by the number of tokens.",
        ),
        (["tokenizer={type: gpt2, vocab_file: v}"], "tokenizer.merge_file: required with tokenizer.type: gpt2."),
        (["tokenizer={type: huggingface}"], "tokenizer.file: required with tokenizer.type: huggingface."),
        (
            ["tokenizer={type: huggingface, file: t}", "data.corpus={source: python_stdlib}"],
            "tokenizer.vocab_size: required with data.corpus, on which the tokenizer is trained.",
        ),
        (["data.path=null"], FILES_MISSING),
        (["data={blend: []}"], FILES_MISSING),
        (["data={train_data_path: []}"], FILES_MISSING),
        (["data={train_data_path: 5}"], "data.train_data_path: 5 is neither a path nor a list of {weight, path}."),
        (
            ["data={train_data_path: [0.3, a, 0.7, b]}"],
            "data.train_data_path: [0.3, 'a', 0.7, 'b'] is neither a path nor a list of {weight, path}.",
        ),
        (
            ["data={path: a, test_data_path: b}"],
            "data.path: given together with files for one split (data.train_data_path, ...).",
        ),
        (
            ["data={blend: [{weight: 1, path: a}], valid_data_path: b}"],
            "data.blend: given together with files for one split (data.train_data_path, ...).",
        ),
        (
            ["data={valid_data_path: b}"],
            "data.train_data_path: required where validation or test have files of their own.",
        ),
        (
            ["data={train_data_path: a}"],
            "data.valid_data_path: required where training has files of its own, or set evaluation.interval: 0.",
        ),
        (
            ["data={train_data_path: a, valid_data_path: b, corpus: {source: python_stdlib}}"],
            "data.corpus: this builds one token file: give data.path instead of data.train_data_path.",
        ),
        (
            ["data.split_by=tokens"],
            "data.split_by: tokens needs data.index: native; megatron divides between documents.",
        ),
        (
            ["data={path: a, blend: [{weight: 1, path: b}]}"],
            "data.blend: given together with data.path; choose one.",
        ),
        (
            ["data={blend: [{weight: 1, path: b}], corpus: {source: python_stdlib}}"],
            "data.corpus: this builds one token file: give data.path instead of data.blend.",
        ),
        (["data.split='0,1,1'"], "data.split: 0,1,1 leaves no document for training."),
        (
            ["data.split='1,0,0'"],
            "data.split: 1,0,0 leaves no document for validation. Change it, or set evaluation.interval: 0.",
        ),
        (["train.train_iters=null"], "train.train_iters: required, or train.train_samples."),
        (
            ["train={train_iters: 1, train_samples: 8, micro_batch_size: 1, global_batch_size: 1}"],
            "train.train_samples: given together with train.train_iters; choose one.",
        ),
        (["train.micro_batch_size=3"], "train.global_batch_size: 8 is not a multiple of train.micro_batch_size 3."),
        (
            ["train.rampup_batch_size=[2, 4, 100]", SAMPLES],
            "train.rampup_batch_size: this does not reach train.global_batch_size 8 from 2 in steps of 4.",
        ),
        (
            ["train.rampup_batch_size=[0, 2, 100]", SAMPLES],
            "train.rampup_batch_size: [0, 2, 100]: start, increment and samples must be greater than 0.",
        ),
        (
            ["train.rampup_batch_size=[5, 3, 100]", SAMPLES],
            "train.rampup_batch_size: 5 and 3 must be multiples of train.micro_batch_size 2.",
        ),
        (
            ["train.rampup_batch_size=[2, 2, 100]"],
            "train.rampup_batch_size: this counts samples: give train.train_samples instead of train.train_iters.",
        ),
        (["schedule.min_lr=1"], "schedule.min_lr: 1.0 is more than optimizer.lr 0.001."),
        (
            ["schedule={lr_warmup_iters: 3, lr_warmup_fraction: 0.1}"],
            "schedule.lr_warmup_fraction: this gives the warm-up a second time; choose one key.",
        ),
        (
            ["schedule.lr_warmup_samples=3"],
            "lr_warmup_samples: this conflicts with train.train_iters; give schedule.lr_warmup_iters instead.",
        ),
        (
            ["schedule.lr_decay_iters=3", SAMPLES],
            "lr_decay_iters: this conflicts with train.train_samples; give schedule.lr_decay_samples instead.",
        ),
        (
            ["schedule.lr_warmup_iters=100"],
            "100 must be less than schedule.lr_decay_iters, which is 100 (train.train_iters if not given).",
        ),
        (
            ["schedule.lr_decay_style=WSD"],
            "schedule.lr_wsd_decay_iters: required with schedule.lr_decay_style: WSD.",
        ),
        (
            ["schedule={lr_decay_style: WSD, lr_warmup_iters: 90, lr_wsd_decay_iters: 20}"],
            "schedule.lr_wsd_decay_iters: 20 is more than the 10 iters after the warm-up.",
        ),
        (
            ["checkpoint.local_interval=5"],
            "is missing, and checkpoint.local_interval is set. Name a folder on each node's disk, or in /dev/shm.",
        ),
    ],
)
def test_unsupported_combinations_are_refused(refusal, overrides, expected):
    problems = [
        line.partition(": ")[2] if line.startswith("recipe: ") else line for line in refusal(*overrides).splitlines()
    ]
    assert any(line.endswith(expected) for line in problems), problems


@pytest.mark.parametrize(
    "overrides",
    [
        ["schedule.lr_warmup_iters=5"],
        ["schedule={lr_decay_style: WSD, lr_wsd_decay_iters: 3}"],
        ["schedule.lr_warmup_fraction=0.1"],
        ["data.split='0,1,1'"],
    ],
)
def test_a_recipe_that_trains_nothing_may_lack_what_training_needs(make, overrides):
    assert make("train.train_iters=0", *overrides).train.train_iters == 0


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.num_attention_heads=3", "model.kv_channels=20"],
        ["model.num_query_groups=1"],
        [ROPE, "model.rotary_percent=0.25"],
        [ROPE, "model.use_rope_scaling=true", "model.rope_scaling_factor=32", "model.add_bias_linear=false"],
        ["model.add_bias_linear=false", "model.add_qkv_bias=true"],
        ["parallel={tensor_model_parallel_size: 4, sequence_parallel: true}"],
        ["parallel={pipeline_model_parallel_size: 2, virtual_pipeline_model_parallel_size: 2}", "model.num_layers=8"],
        ["parallel={use_distributed_optimizer: true, overlap_grad_reduce: true, overlap_param_gather: true}"],
        ["parallel.tensor_model_parallel_size=2", "recompute={granularity: full, distribute_saved_activations: true}"],
        ["data.split='1,0,0'", "evaluation.interval=0"],
        ["data.train_data_path=a", "evaluation.interval=0"],
        ["data.split_by=tokens", "data.index=native"],
        ["train.rampup_batch_size=[2, 2, 100]", SAMPLES, "schedule={lr_warmup_samples: 5, lr_decay_samples: 12}"],
        ["schedule={lr_decay_style: constant, lr_warmup_fraction: 0.1, lr_decay_iters: 50}"],
        ["schedule={lr_decay_style: WSD, lr_wsd_decay_iters: 20, lr_wsd_decay_style: linear}"],
        ["precision={dtype: fp16, loss_scale: 128}"],
        ["kernels={attention: their-triangle, triangle_block_size: 64}"],
    ],
)
def test_supported_combinations_are_accepted(make, overrides):
    assert make(*overrides) != make()


LAYER = "kernels.compile=layer"
PLAIN = ("model.hidden_dropout=0", "model.attention_dropout=0")


def test_compiled_operations_use_the_reference(make):
    chosen = make(LAYER, *PLAIN, "kernels.attention=flash").kernels.chosen()
    assert {operation for operation, kernel in chosen.items() if kernel == "reference"} == {
        *("norm", "norm@head", "rotary", "activation", "bias_dropout_add")
    }
    assert chosen["attention"] == "flash"
    assert chosen["linear"] == chosen["optimizer"] == "auto"


def test_without_compilation_every_kernel_is_the_recipes(make):
    chosen = make("kernels.norm=mine").kernels.chosen()
    assert chosen.pop("norm") == "mine"
    assert set(chosen.values()) == {"auto"}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["engine.name=deepspeed"], "kernels.compile: layer needs engine.name: megatron; with deepspeed it was not"),
        (["train.deterministic_mode=true"], "kernels.compile: layer conflicts with train.deterministic_mode"),
        (
            [
                "parallel={use_distributed_optimizer: true, overlap_grad_reduce: true, overlap_param_gather: true}",
            ],
            "kernels.compile: layer conflicts with parallel.overlap_param_gather",
        ),
        (["model.hidden_dropout=0.1"], "kernels.compile: layer needs model.hidden_dropout: 0."),
        (["model.attention_dropout=0.1"], "kernels.compile: layer needs model.attention_dropout: 0."),
        (["kernels.norm=triton"], "kernels.norm: must be auto or reference with kernels.compile: layer."),
    ],
)
def test_untested_combinations_are_refused(refusal, overrides, expected):
    assert expected in refusal(LAYER, *PLAIN, *overrides)


def test_an_override_that_contradicts_a_key_of_the_file_is_named_beside_it(refusal, smallest):
    smallest["schedule"] = {"min_lr": 0.5}
    found = refusal("optimizer.lr=0.1", data=smallest)
    assert found == "recipe and --set optimizer.lr=0.1: schedule.min_lr: 0.5 is more than optimizer.lr 0.1."
