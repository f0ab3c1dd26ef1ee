"""residual + dropout(x + bias) is the reference's; this backend offers no other, and the plugin has no hook for it.

CANN has no kernel for the sum, and torch_npu's dropout is fused already.
"""
