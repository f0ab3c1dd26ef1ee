#!/bin/bash
# GPT-3 175B on 8 nodes with 8 GPUs each; the arguments are those of the description and of GPT-3's own script.
node_gpus=8
nodes=8
rank_of_node=0
main_host=localhost
main_port=6000
all_gpus=$((node_gpus * nodes))

checkpoints=$1
board=$2
vocab=$3
merges=$4

first="$CORPORA/wikipedia_20220301_en_text_document"
second="$CORPORA/openwebtext_Skylion007_text_document"
blend="0.35 ${first} 0.65 ${second}"
cache="$CACHES/gptcache"

tensor=8
stages=8
echo "training on $all_gpus GPUs"

layout=(--nproc_per_node $node_gpus --nnodes $nodes --node_rank $rank_of_node)
layout+=(--master_addr $main_host --master_port $main_port)

shape=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --init-method-std 0.006
    --attention-dropout 0.1
    --hidden-dropout 0.1
)
steps=(
    --micro-batch-size 1
    --global-batch-size 1536
    --train-samples 146484375
    --lr-decay-samples 126953125
    --lr-warmup-samples 183105
    --lr 6.0e-5
    --min-lr 6.0e-6
    --lr-decay-style cosine
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --clip-grad 1.0
    --fp16
    --use-flash-attn-v2
    --checkpoint-activations
)
data=(
    --data-path $blend
    --data-cache-path "$cache"
    --vocab-file "$vocab"
    --merge-file "$merges"
    --split 949,50,1
)
output=(
    --log-interval 10
    --save-interval 1000
    --eval-interval 1000
    --eval-iters 40
    --tensorboard-dir "$board"
    --save "$checkpoints"
    --load "$checkpoints"
)

torchrun "${layout[@]}" pretrain_gpt.py \
    --tensor-model-parallel-size $tensor \
    --pipeline-model-parallel-size $stages \
    "${shape[@]}" "${steps[@]}" "${data[@]}" "${output[@]}"
