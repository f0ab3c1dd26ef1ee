"""Parts of texts, with their ids, as a build compares them with the reference."""

from pretrain.tools.corpus.reference_comparison import comparisons_of, parts_of


def samples_by(tokenizer, texts):
    """Return what of `texts` is compared with the reference."""
    parts = parts_of(tokenizer.added_tokens, texts)
    return comparisons_of(parts, tokenizer.encode_batch(texts), tokenizer.encode_batch([part.text for part in parts]))
