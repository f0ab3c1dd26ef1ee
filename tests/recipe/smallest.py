"""The smallest recipe that is complete, as plain data."""

SMALLEST = {
    "model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32},
    "tokenizer": {"type": "bytes"},
    "data": {"path": "corpus"},
    "train": {"micro_batch_size": 2, "global_batch_size": 8, "train_iters": 100},
    "optimizer": {"lr": 1e-3},
}
