!/bin/bash
# The same model with DeepSpeed's ZeRO. The first line lacks its number sign, as in the document.
gpus=4

state=checkpoints/gpt2
vocab=data/gpt2-vocab.json
merges=data/gpt2-merges.txt
tokens=data/meg-gpt2_text_document
settings=deepspeed_config.json

model=" \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 \
    --micro-batch-size 1 --global-batch-size 4 \
    --train-iters 5000 --lr-decay-iters 320000 \
    --lr 0.00015 --min-lr 1.0e-5 --lr-decay-style cosine --lr-warmup-fraction .01 \
    --weight-decay 1e-2 --clip-grad 1.0 --fp16 \
    --vocab-file $vocab --merge-file $merges --data-impl mmap --split 949,50,1 \
    --distributed-backend nccl \
    "
reports=" \
    --log-interval 10 --save-interval 500 --eval-interval 100 --eval-iters 10 \
    --checkpoint-activations \
    "
files=" \
    --save $state --load $state --data-path $tokens \
    "
everything="$model $reports $files  --deepspeed_config $settings"

starter="deepspeed --num_gpus $gpus"
command="$starter pretrain_gpt.py $everything"

echo $command

$command
