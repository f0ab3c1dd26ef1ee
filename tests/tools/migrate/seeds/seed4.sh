# A tiny GPT-2 on two GPUs, with DeepSpeed's settings written by the script.
gpus=2
tensor=2
stages=1
micro=1
batch=16

layers=2
width=8
heads=2
length=512

samples=10_000
state=checkpoints/gpt2
zero=1
settings="./ds_config.json"

cat <<END > $settings
{
  "train_batch_size": $batch,
  "train_micro_batch_size_per_gpu": $micro,
  "zero_optimization": {"stage": $zero},
  "gradient_clipping": 1.0,
  "fp16": {
    "enabled": true,
    "initial_scale_power": 12,
    "loss_scale": 0,
    "loss_scale_window": 500,
    "min_loss_scale": 1,
    "hysteresis": 2
  },
  "wall_clock_breakdown": false,
  "steps_per_print": 2000
}
END

model=" \
    --num-layers $layers --hidden-size $width --num-attention-heads $heads \
    --seq-length $length --max-position-embeddings $length --embed-layernorm \
    "
steps=" \
    --micro-batch-size $micro --global-batch-size $batch --rampup-batch-size 2 2 1_000 \
    --train-samples $samples --seed 42 --fp16 \
    --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 \
    --lr 1e-4 --min-lr 1e-6 --lr-warmup-samples 5 --lr-decay-samples 12 --lr-decay-style cosine \
    --clip-grad 1.0 --weight-decay 1e-1 \
    --checkpoint-activations --partition-activations \
    "
text=" \
    --data-path data/meg-gpt2-oscar-en-10k_text_document \
    --vocab-file data/gpt2-vocab.json --merge-file data/gpt2-merges.txt \
    "
output=" \
    --save $state --load $state --save-interval 50 --exit-interval 100 \
    --log-interval 10 --eval-interval 100 --eval-iters 10 \
    --tensorboard-dir output_dir/tensorboard --tensorboard-queue-size 5 \
    --log-timers-to-tensorboard --log-batch-size-to-tensorboard --log-validation-ppl-to-tensorboard \
    --kill-switch-path /tmp/kill-switch \
    "
deepspeed=" \
    --deepspeed --deepspeed_config ${settings} --zero-stage ${zero} --deepspeed-activation-checkpointing \
    "

host=localhost
port=6777
export STARTER="python -u -m torch.distributed.run --nproc_per_node $gpus --nnodes 1 \
    --rdzv_endpoint $host:$port --rdzv_backend c10d --max_restarts 0 --tee 3"
export START=" \
    $STARTER pretrain_gpt.py --tensor-model-parallel-size $tensor --pipeline-model-parallel-size $stages \
    --distributed-backend nccl $model $steps $text $output $deepspeed \
    "

echo $START
$START
