"""A small corpus, the same in every run."""

import json

WORDS = ("the", "loss", "falls", "well", "below", "entropy", "while", "tokens", "flow", "\u00e9", "\u4e16\U0001f600")
DOCUMENTS = [
    " ".join(WORDS[(number * 7 + place * place) % len(WORDS)] for place in range(5 + number * 13 % 90))
    for number in range(300)
]


def write_jsonl(path, documents, key="text"):
    path.write_text("".join(json.dumps({key: document}) + "\n" for document in documents))
    return path
