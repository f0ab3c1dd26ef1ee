"""The choice of experts is the reference's; this backend offers no other, and the plugin has no hook for it.

`npu_moe_gating_top_k` is for inference by its documentation, which does not say which of equal experts it takes.
"""
