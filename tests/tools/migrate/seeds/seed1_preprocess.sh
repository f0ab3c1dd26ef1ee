python tools/preprocess_data.py --input $CORPORA/wikipedia.20220301.en.json \
    --output-prefix $CORPORA/wikipedia_20220301_en --tokenizer-type GPT2BPETokenizer \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --append-eod --workers 8
