python tools/preprocess_data.py --input data/oscar-en-10k.jsonl --output-prefix data/meg-gpt2-oscar-en-10k \
    --vocab data/gpt2-vocab.json --merge-file data/gpt2-merges.txt --tokenizer-type GPT2BPETokenizer \
    --dataset-impl mmap --append-eod --workers 4
