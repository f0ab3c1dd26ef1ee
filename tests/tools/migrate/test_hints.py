"""Flags of other programs in an error of `pretrain run` or `data build`: each is a key, an option, or has an answer."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pretrain.cli.run import command
from pretrain.recipe import load_recipe, make_recipe
from pretrain.tools.migrate.hints import flag_of_build, flag_of_run

MEGATRON_LM = """
--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024
--micro-batch-size 1 --global-batch-size 2 --lr 0.00015 --train-iters 5000 --lr-decay-iters 320000
--lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 --lr-warmup-fraction .01 --clip-grad 1.0 --fp16
--data-path data/my-gpt2_text_document --vocab-file data/gpt2-vocab.json --merge-file data/gpt2-merges.txt
--data-impl mmap --split 700,200,100 --log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10
"""
MEGATRON_DEEPSPEED = """
--nproc_per_node 1 --nnodes 1 --node_rank 0 --master_addr localhost --master_port 6000 --num_gpus 4
--tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 --save c --load c --distributed-backend nccl
--checkpoint-activations --deepspeed_config deepspeed_config.json
--rampup-batch-size 2 2 1_000 --train-samples 10_000 --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95
--adam-eps 1e-8 --lr-warmup-samples 5 --lr-decay-samples 12 --embed-layernorm --partition-activations --seed 42
--exit-interval 100 --tensorboard-dir t --tensorboard-queue-size 5 --log-timers-to-tensorboard
--log-batch-size-to-tensorboard --log-validation-ppl-to-tensorboard --kill-switch-path /tmp/kill-switch --deepspeed
--zero-stage 1 --deepspeed-activation-checkpointing --rdzv_endpoint localhost:6777 --rdzv_backend c10d
--max_restarts 0 --tee 3
"""
GPT_NEOX = """
--vocab-file v --save s --load l --data-path d --pipe-parallel-size 4 --model-parallel-size 2 --num-layers 44
--norm layernorm --pos-emb rotary --rotary_pct 0.25 --zero_optimization z --train_micro_batch_size_per_gpu 4
--gradient_accumulation_steps 32 --checkpoint-activations --train-iters 150000 --checkpoint-factor 500
--eval-interval 1000 --eval-iters 10 --num_gpus 1 --global_num_gpus 1 --scaled_masked_softmax_fusion
--async_tensor_model_parallel_allreduce --use_triangle_attn --finetune
"""


def flags(text):
    """Yield each flag with the words after it."""
    for part in f" {' '.join(text.split())}".split(" --")[1:]:
        name, *values = part.split()
        yield f"--{name}", values


@pytest.mark.parametrize("text", [MEGATRON_LM, MEGATRON_DEEPSPEED, GPT_NEOX], ids=["Megatron-LM", "DeepSpeed", "NeoX"])
def test_every_flag_of_the_published_commands_has_an_answer(text):
    own = {name for option in command.params for name in option.opts}
    unanswered = [flag for flag, values in flags(text) if not flag_of_run(flag, values)]
    assert [flag for flag in unanswered if flag.replace("_", "-") not in own] == []


def test_the_answers_to_a_published_command_make_its_recipe():
    answers = [flag_of_run(*given) for given in flags(MEGATRON_LM)]
    settings = [shlex.split(answer.removesuffix("."))[-1] for answer in answers if " --set " in answer]
    assert len(settings) == len(answers) - 1  # --data-impl
    recipe = make_recipe({"tokenizer": {"type": "gpt2"}}, settings)
    published = load_recipe(Path(__file__).parents[3] / "recipes" / "gpt2-345m.yml")
    assert recipe.train.model_copy(update={"seed": published.train.seed}) == published.train
    told, known = recipe.evaluation, published.evaluation
    assert (told.interval, told.iters) == (known.interval, known.iters)
    for section in ("tokenizer", "checkpoint", "logging", "schedule", "optimizer"):
        assert getattr(recipe, section) == getattr(published, section)


@pytest.mark.parametrize(
    ("flag", "values", "answer"),
    [
        ("--data-impl", ["mmap"], "not needed: token files are always memory-mapped (mmap)."),
        ("--DDP-impl", ["local"], "not needed: there is one kind of data parallelism"),
        ("--data-path", ["0.35", "a", "0.65", "b"], "--set 'data.blend=[{weight: 0.35, path: a}, {weight: 0.65, path"),
        ("--rampup-batch-size", ["2", "2", "1_000"], "here it is --set 'train.rampup_batch_size=2 2 1_000'."),
        ("--eval-interval", ["100"], "here it is --set evaluation.interval=100."),
        ("--finetune", [], "here it is --set checkpoint.finetune=true."),
        ("--optimizer", ["adam"], "here it is --set optimizer.name=adamw (which Megatron calls adam; there is no"),
        ("--rdzv_endpoint", ["a:1"], "here it is --rdzv HOST:PORT."),
        ("--pos-emb", ["rotary"], "here it is --set model.position_embedding_type=rope."),
        ("--add-qkv-bias", [], "here it is --set model.add_qkv_bias=true."),
        ("--use-rope-scaling", [], "here it is --set model.use_rope_scaling=true."),
        ("--rope-scaling-factor", ["32"], "here it is --set model.rope_scaling_factor=32."),
        (
            "--rotary-seq-len-interpolation-factor",
            ["4"],
            "here it is --set model.rope_scaling_factor=4 (with use_rope_scaling: true and rope_scaling_type: linear).",
        ),
        ("--norm", ["rmsnorm"], "here it is --set model.normalization=RMSNorm."),
        ("--data-path", ["a", "b"], "--set 'data.blend=[{weight: WEIGHT, path: a}, {weight: WEIGHT, path: b}]'."),
        ("--data-path", ["a"], "here it is --set data.path=a."),
        ("--attention-backend", ["fused"], "here it is --set kernels.attention=auto"),
        ("--tokenizer-type", ["GPT2BPETokenizer"], "here it is --set tokenizer.type=gpt2."),
        (
            "--iterations-to-skip",
            ["811"],
            "here it is --set train.iterations_to_skip=ITERATIONS (each number one higher: here iterations are",
        ),
        ("--timing-log-level", ["0"], "here it is --set logging.log_timers=false."),
        ("--vocab", ["v.json"], "here it is --set tokenizer.vocab_file=v.json."),
        ("--disable-bias-linear", [], "here it is --set model.add_bias_linear=false."),
        ("--no-query-key-layer-scaling", [], "here it is --set model.apply_query_key_layer_scaling=false."),
        ("--no-masked-softmax-fusion", [], "not needed: kernels are negotiated"),
        ("--no-position-embedding", [], "here it goes into model.position_embedding_type (position_embedding_type, or"),
        ("--context-parallel-size", ["2"], "here it is --set parallel.context_parallel_size=2."),
        ("--mask-prob", ["0.15"], "not needed: only the training of BERT or T5 reads it."),
        ("--swiglu", ["stray"], "here it is --set model.activation=swiglu."),
        (
            "--optimizer",
            ["sgd"],
            "here it goes into optimizer.name (adam has decoupled weight decay there; there is no",
        ),
        ("--position-embedding-type", ["alibi"], "here it goes into model.position_embedding_type (position_embedding"),
        ("--gradient-accumulation-steps", ["32"], "not needed: it follows: global_batch_size / (micro_batch_size x"),
        ("--expansion-factor", ["4"], "here it goes into model.ffn_hidden_size ("),
        ("--checkpoint-factor", ["500"], "here it is --set checkpoint.save_interval=500."),
        ("--tensorboard-dir", ["t"], "not needed: its files are in tensorboard/ of the run directory: --run-dir."),
    ],
)
def test_an_answer_is_what_to_write(flag, values, answer):
    assert answer in flag_of_run(flag, values)


@pytest.mark.parametrize(
    ("flag", "value", "answer"),
    [
        ("--train-tokens", "300_000_000_000", "train.train_samples=SAMPLES (tokens / model.seq_length)"),
        ("--lr-warmup-tokens", "3_000_000", "schedule.lr_warmup_samples=SAMPLES (tokens"),
        ("--num-layers-per-virtual-pipeline-stage", "2", "virtual_pipeline_model_parallel_size=CHUNKS (layers of a"),
        ("--pipeline-model-parallel-layout", "Et*3|t*2L", "parallel.pipeline_layers=LAYERS (of every stage"),
    ],
)
def test_a_value_that_counts_something_else_is_not_copied(flag, value, answer):
    given = flag_of_run(flag, [value])
    assert answer in given
    assert value not in given


def test_an_activation_is_the_one_that_the_program_computes():
    """Megatron's fused_bias_gelu always computes the tanh approximation."""
    assert "--set model.activation=gelu_tanh" in flag_of_run("--bias-gelu-fusion")
    assert "--set model.activation=gelu " in flag_of_run("--no-bias-gelu-fusion")


def test_leaving_out_the_generators_does_not_leave_out_the_optimizer():
    assert "finetune" not in flag_of_run("--no-load-rng")
    assert "counted from 0" in flag_of_run("--no-load-optim")


@pytest.mark.parametrize(
    ("flag", "answer"),
    [
        ("--jsonl-keys", "here it is --json-key."),
        ("--tokenizer-name-or-path", "here it is --tokenizer-file."),
        ("--partitions", "here it is --shard I/N."),
        ("--keep-sequential-samples", "not needed: documents always keep their order."),
        ("--split-sentences", "not supported: it serves BERT and T5; a list of sentences under"),
        ("--no-such-flag", ""),
    ],
)
def test_a_flag_of_the_preprocessing_is_answered_likewise(flag, answer):
    assert flag_of_build(flag).startswith(answer)
    assert bool(flag_of_build(flag)) == bool(answer)


@pytest.mark.parametrize("flag", ["--no-such-flag", "--device", "--compile", "--name", "--file", "--interval"])
def test_an_unknown_flag_has_no_answer(flag):
    """A key of one word may have another meaning as a flag: --device is not a device of offload."""
    assert flag_of_run(flag) == ""


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("data.data_impl", "unknown key. It is not needed: token files are always memory-mapped (mmap)."),
        ("train.eval-interval", "unknown key. It is written evaluation.interval."),
        ("num-layers", "unknown key. It is written model.num_layers."),
        ("fp16", "unknown key. It is written precision.dtype: fp16."),
        ("model.n_embd", "unknown key. It is written model.hidden_size."),
        ("train.learning_rate", "unknown key. It is written optimizer.lr."),
        ("dropout", "unknown key. It is written model.hidden_dropout (and model.attention_dropout)."),
        ("optimizer.beta1", "unknown key. It is written optimizer.adam_beta1."),
        ("out_dir", "unknown key. It is not a key of a recipe: give pretrain --run-dir."),
        ("zero_optimization", "unknown key. It is written engine.zero (with engine.name=deepspeed)."),
        ("train.train_itres", "unknown key. Did you mean 'train.train_iters'?"),
    ],
)
def test_a_recipe_is_answered_likewise(key, answer, refusal):
    assert f": {key}: {answer}" in refusal(f"{key}={{}}")


@pytest.mark.parametrize(
    ("key", "value", "answer"),
    [
        ("pos_emb", "rotary", "It is written model.position_embedding_type: rope."),
        ("norm_epsilon", "1e-6", "It is written model.layernorm_epsilon."),
        ("gpt_j_residual", "true", "It is written model.parallel_residual: true."),
        ("gpt_j_residual", "false", "It is written model.parallel_residual: false."),
        ("disable_bias_linear", "false", "It is written model.add_bias_linear: true."),
        ("checkpoint-activations", "false", "It is false: leave it out."),
        ("no-bias-gelu-fusion", "true", "It is written model.activation: gelu (the fused kernel computes"),
        ("num_experts", "8", "Did you mean 'model.num_experts'?"),
        ("num_moe_experts", "8", "It is written model.num_experts."),
        ("train_tokens", "3000", "It is written train.train_samples: SAMPLES (tokens / model.seq_length)."),
        ("master_port", "6000", "It is not a key of a recipe: give pretrain --rdzv HOST:PORT."),
    ],
)
def test_a_key_is_answered_by_its_value(key, value, answer, refusal):
    assert f": {key}: unknown key. {answer}" in refusal(f"{key}={value}")
