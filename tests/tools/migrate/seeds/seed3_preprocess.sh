texts=pile
words=tokenizer
inputs=$texts/00.jsonl
for part in 01 02 03; do inputs=$inputs,$texts/$part.jsonl; done
python ./tools/preprocess_data.py --input $inputs --output-prefix tokens/pile_20B_tokenizer \
    --tokenizer-type HFTokenizer --vocab $words/20B_tokenizer.json \
    --dataset-impl mmap --append-eod --workers 150 > preprocess.log 2>&1 &
