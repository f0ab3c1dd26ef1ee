#!/bin/bash
# GPT-2 345M on one GPU, with Megatron-LM of July 2023.
export CUDA_DEVICE_MAX_CONNECTIONS=1

words=/workspace/model/gpt2-vocab
tokens=/workspace/data/my-gpt2_text_document
state=/workspace/model/megatron-models/345m

model="
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16
    --seq-length 1024 --max-position-embeddings 1024
    --micro-batch-size 1 --global-batch-size 2
    --train-iters 5000 --lr 0.00015 --min-lr 1.0e-5
    --lr-decay-iters 320000 --lr-decay-style cosine --lr-warmup-fraction .01
    --weight-decay 1e-2 --clip-grad 1.0 --fp16
"
data="--data-path $tokens --vocab-file $words/gpt2-vocab.json --merge-file $words/gpt2-merges.txt
    --data-impl mmap --split 700,200,100"
reports="--log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10"

torchrun pretrain_gpt.py $model $data $reports --save $state --load $state
