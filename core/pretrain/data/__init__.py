"""Text to batches: tokenizers, token files, blended datasets and resumable batches.

Nothing heavy is imported here: `pretrain data build` starts without torch, and megatron-core is imported only by
`datasets`, after the bridge.
"""
