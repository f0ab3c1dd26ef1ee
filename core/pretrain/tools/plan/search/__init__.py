"""Search for layouts that fit: `pretrain plan --search`, by a model of traced pieces, not a trace of each."""
