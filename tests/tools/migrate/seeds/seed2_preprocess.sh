python3 tools/preprocess_data.py --input oscar-1GB.jsonl --output-prefix meg-gpt2 \
    --vocab gpt2-vocab.json --merge-file gpt2-merges.txt --tokenizer-type GPT2BPETokenizer \
    --dataset-impl mmap --append-eod --workers 8
