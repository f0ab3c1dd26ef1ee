#! /bin/bash
# GPT-2 345M on one GPU.
gpus=1
nodes=1
this_node=0
host=localhost
port=6000
world=$(($gpus*$nodes))

tokens=data/meg-gpt2_text_document
state=checkpoints/gpt2

start="--nproc_per_node $gpus --nnodes $nodes --node_rank $this_node --master_addr $host --master_port $port"

python -m torch.distributed.launch $start pretrain_gpt.py \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 \
    --micro-batch-size 4 --global-batch-size 8 \
    --train-iters 5000 \
    --lr 0.00015 --min-lr 1.0e-5 --lr-decay-style cosine --lr-decay-iters 320000 --lr-warmup-fraction .01 \
    --weight-decay 1e-2 --clip-grad 1.0 --fp16 \
    --data-path $tokens --data-impl mmap --split 949,50,1 \
    --vocab-file data/gpt2-vocab.json --merge-file data/gpt2-merges.txt \
    --save $state --load $state --save-interval 500 \
    --checkpoint-activations --distributed-backend nccl \
    --log-interval 10 --eval-interval 100 --eval-iters 10
