"""The choice of experts is the reference's; this backend offers no other, and the plugin has no hook for it.

Transformer Engine's `fused_topk_with_score_function` does not say which of equal experts it takes, and was not run.
"""
