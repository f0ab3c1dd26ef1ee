"""The linear layer is the reference's; this backend offers no other, and the plugin has no hook for it.

The reference issues the all-reduce of the input's gradient before the matmul of the weight's gradient, and HCCL runs it
on a stream of its own. docs/ascend.md says why the fused kernels of matmul and communication are not used.
"""
