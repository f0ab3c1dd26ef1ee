"""The sorting of tokens by expert is the reference's; this backend offers no other, and the plugin has no hook for it.

The reference gathers rows by index, forward and backward, and neither adds atomically nor waits for the GPU.
Transformer Engine's `moe_permute_with_probs` was not run.
"""
