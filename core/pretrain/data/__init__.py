"""Text to batches: tokenizers, token files, blended datasets and resumable batches; nothing heavy is imported here."""
