"""The words of each key, for which no other flag or default stands."""

from __future__ import annotations

import shlex

import pytest

from pretrain.tools.migrate.programs import program
from pretrain.tools.migrate.to_megatron.flags import TARGET, given
from tools.migrate.to_megatron.written import ALWAYS, added, written


def test_what_megatron_requires_or_defaults_to_another_value_is_always_written():
    """The rest is left to defaults, which are the same."""
    assert written().words == ALWAYS
    assert written().left_out == ()


def test_text_has_one_flag_a_line_for_a_shell():
    """It can stand after pretrain_gpt.py, or in a file of arguments."""
    arguments = written(
        "data.path=my text", "train.rampup_batch_size=[2, 2, 50]", "train.train_iters=null", "train.train_samples=900"
    )
    assert "--data-path 'my text' \\\n" in arguments.text
    assert "--rampup-batch-size 2 2 50 \\\n" in arguments.text
    assert arguments.text.endswith("--eval-interval 1000 \\\n--log-straggler\n")
    assert tuple(shlex.split(arguments.text.replace("\\\n", " "))) == arguments.words


SAID = {
    "model.activation=gelu": ["--no-bias-gelu-fusion"],
    "model.activation=swiglu": ["--swiglu"],
    "model.add_bias_linear=false": ["--use-te-activation-func", "--disable-bias-linear"],
    "model.ffn_hidden_size=100": ["--ffn-hidden-size 100"],
    "model.kv_channels=32": ["--kv-channels 32"],
    "model.num_query_groups=1": ["--group-query-attention", "--num-query-groups 1"],
    "model.window_size=512": ["--window-size 511,0"],
    "model.normalization=RMSNorm": ["--normalization RMSNorm"],
    "model.position_embedding_type=rope": ["--position-embedding-type rope"],
    "model.attention_softmax_in_fp32=false": ["--no-masked-softmax-fusion"],
    "model.layernorm_epsilon=1e-6": ["--norm-epsilon 1e-06"],
    "tokenizer={type: huggingface, file: a/tokenizer.json}": [
        "--tokenizer-type HuggingFaceTokenizer",
        "--tokenizer-model a",
    ],
    "data.num_workers=1": ["--num-workers 1"],
    "data.split='8, 1,1'": ["--split 8,1,1"],
    "train.train_iters=0": ["--train-iters 0", "--skip-train"],
    "train.manual_gc=true": ["--manual-gc", "--manual-gc-interval 50"],
    "train.exit_duration_in_mins=30": ["--exit-duration-in-mins 30"],
    "schedule.use_checkpoint_opt_param_scheduler=true": ["--use-checkpoint-opt-param-scheduler"],
    "precision={dtype: bf16, grad_reduce_in_fp32: false}": ["--bf16", "--grad-reduce-in-bf16"],
    "precision={dtype: fp16, grad_reduce_in_fp32: true}": ["--fp16", "--accumulate-allreduce-grads-in-fp32"],
    "precision={dtype: fp16, loss_scale: 1024}": ["--fp16", "--loss-scale 1024.0"],
    "parallel={pipeline_model_parallel_size: 2, virtual_pipeline_model_parallel_size: 2}": [
        "--pipeline-model-parallel-size 2",
        "--num-virtual-stages-per-pipeline-rank 2",
    ],
    "parallel={pipeline_model_parallel_size: 3, pipeline_layers: [2, 4, 2]}": [
        "--pipeline-model-parallel-size 3",
        "--pipeline-model-parallel-layout 'Ett|tttt|ttL'",
    ],
    "recompute.granularity=full": [
        "--recompute-granularity full",
        "--recompute-method uniform",
        "--recompute-num-layers 1",
    ],
    "recompute.granularity=selective": ["--recompute-granularity selective"],
    "kernels.attention=softmax": ["--attention-backend unfused"],
    "checkpoint={save: out, save_interval: 7, async_save: true}": [
        "--save out",
        "--save-interval 7",
        "--async-save",
        "--use-persistent-ckpt-worker",
    ],
    "checkpoint.save=true": ["--save checkpoints", "--save-interval 100"],
    "evaluation.interval=0": ["--eval-iters 0"],
    "evaluation.iters=7": ["--eval-iters 7"],
    "logging={log_timers: true, loggers: [tensorboard]}": ["--tensorboard-dir tensorboard", "--timing-log-level 1"],
    # Megatron-LM logs to W&B only where it writes for TensorBoard too.
    "logging={loggers: [wandb], wandb_project: p}": [
        "--tensorboard-dir tensorboard",
        "--wandb-project p",
        "--wandb-exp-name p",
    ],
    "engine={name: deepspeed, zero: {stage: 1, overlap_comm: true, reduce_bucket_size: 1000}}": [
        "--use-distributed-optimizer",
        "--overlap-grad-reduce",
        "--ddp-bucket-size 1000",
    ],
}


@pytest.mark.parametrize("override", SAID)
def test_words_of_a_value(override: str):
    """Some values take two flags, and some the flag of another key's default."""
    assert added(override) == SAID[override]


def test_a_state_in_bf16_takes_the_optimizer_that_may_keep_it():
    sharded = ("parallel.use_distributed_optimizer=true", "optimizer.adam_beta2=0.95")
    one = [*added(*sharded), "--use-precision-aware-optimizer", "--exp-avg-sq-dtype bf16"]
    assert sorted(added(*sharded, "optimizer.exp_avg_sq_dtype=bf16")) == sorted(one)
    both = ("optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16")
    assert sorted(added(*sharded, *both)) == sorted([*one, "--exp-avg-dtype bf16"])


def test_a_rate_of_the_embedding_is_a_flag():
    rates = ("optimizer.decoupled_lr=0.5", "schedule.decoupled_min_lr=0.25")
    assert added(*rates) == ["--decoupled-lr 0.5", "--decoupled-min-lr 0.25"]


def test_token_files_of_each_split_have_a_flag_each():
    files = "data={train_data_path: [{weight: 0.5, path: one}, {weight: 2, path: two}], valid_data_path: three}"
    words = written(files).words
    assert "--train-data-path 0.5 one 2.0 two --valid-data-path three" in " ".join(words)
    assert {"--data-path", "--split", "--test-data-path"}.isdisjoint(words)


@pytest.mark.parametrize(
    "override", ["checkpoint.load=s3://b/c", "checkpoint.save=s3://b/c", "data.path=s3://b/c", "data.path=gs://b/c"]
)
def test_an_address_is_told(override):
    left_out = written(override).left_out
    assert any("a local path is needed" in line for line in left_out)


def test_token_files_of_a_blend_follow_their_weights():
    """A path that begins like a flag is written so that it is none."""
    words = written("data.path=null", "data.blend=[{weight: 0.5, path: one}, {weight: 2, path: -two}]").words
    start = words.index("--data-path")
    assert words[start + 1 : start + 5] == ("0.5", "one", "2.0", "./-two")
    assert given("data_cache_path", "-cache") == ("--data-cache-path=-cache",)


def test_only_unfused_attention_looks_at_a_mask_of_documents():
    """With rope, or where positions start again too, the samples themselves say where documents end."""
    assert added("data.reset_attention_mask=true", "data.reset_position_ids=true") == [
        "--reset-position-ids",
        "--dataloader-inter-document-masking",
    ]
    rope = "model.position_embedding_type=rope"
    assert added("data.reset_attention_mask=true", rope)[-1] == "--dataloader-inter-document-masking"
    arguments = written("data.reset_attention_mask=true")
    assert "--reset-attention-mask" in arguments.words
    assert arguments.left_out[0].startswith("data.reset_attention_mask=true: only unfused attention")


LEFT_OUT = {
    "tokenizer={type: bytes}": "tokenizer.type=bytes: NullTokenizer",
    "tokenizer={type: huggingface, file: a/b.json}": "tokenizer.file=a/b.json: Hugging Face's AutoTokenizer",
    "data.index=native": "data.index=native: samples come in another order",
    "model.parallel_residual=true": "model.parallel_residual=true: attention and MLP",
    "model.init_method=small_init": "model.init_method=small_init: weights start",
    "train.exit_duration_in_mins=0.5": "train.exit_duration_in_mins=0.5: --exit-duration-in-mins takes whole numbers",
    "optimizer.exp_avg_dtype=bf16": "optimizer.exp_avg_dtype=bf16: it is fp32 without --use-distributed-optimizer",
    "optimizer.name=adam": "optimizer.name=adam: weight decay is decoupled",
    "kernels.attention=triangle": "kernels.attention=triangle: Transformer Engine",
    "kernels.norm=reference": "kernels.norm=reference: Megatron-LM",
    "checkpoint={save: true, keep: 3}": "checkpoint.keep=3: all checkpoints are kept",
    "evaluation.target_loss=2.5": "evaluation.target_loss=2.5: the final loss is not checked",
}


@pytest.mark.parametrize("override", LEFT_OUT)
def test_what_has_no_flag_is_told(override: str):
    """One line says what changes."""
    (line,) = written(override).left_out
    assert line.startswith(LEFT_OUT[override])
    assert line.endswith(".")


def test_iterations_that_are_too_many_for_a_command_are_told():
    assert "--iterations-to-skip" in written("train.iterations_to_skip=[3, 7-9]").words
    arguments = written("train.iterations_to_skip=[1-200000]")
    assert "--iterations-to-skip" not in arguments.words
    (said,) = arguments.left_out
    assert said.endswith("Megatron-LM takes them one by one, and 200000 numbers are too many for a command.")


def test_zero_beyond_its_first_stage_is_told():
    """The results are the same; the memory is not."""
    zero = "{stage: 3, offload_optimizer: {device: cpu}, sub_group_size: 7}"
    arguments = written("engine.name=deepspeed", f"engine.zero={zero}")
    assert [line.split("=")[0] for line in arguments.left_out] == [
        "engine.name",
        "engine.zero.stage",
        "engine.zero.sub_group_size",
        "engine.zero.offload_optimizer.device",
    ]
    assert "--use-distributed-optimizer" in arguments.words


def test_messages_of_two_interleaved_stages_overlap():
    """Megatron-LM refuses to start otherwise."""
    two = "parallel={pipeline_model_parallel_size: 2, virtual_pipeline_model_parallel_size: 2, overlap_p2p_comm: false}"
    arguments = written(two)
    assert arguments.left_out[0].startswith("parallel.overlap_p2p_comm=false: ")
    assert "--no-overlap-p2p-communication" not in arguments.words
    assert "--no-overlap-p2p-communication" in written(two.replace("size: 2", "size: 4", 1)).words


def test_every_flag_is_one_of_that_version():
    """A renamed flag would end the training before it starts."""
    known = program(TARGET).spelled
    for override in SAID:
        flags = [word.partition("=")[0] for word in written(override).words if word.startswith("--")]
        assert not [flag for flag in flags if flag not in known]
        assert len(flags) == len(set(flags))
