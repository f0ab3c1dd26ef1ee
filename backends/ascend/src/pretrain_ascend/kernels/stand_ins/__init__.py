"""Stand-ins for fake tensors: what CANN's kernels allocate and keep, without torch_npu. Imported by a plan alone.

Shapes and kept tensors are those of op-plugin's source (commit 517f2e7d): derivatives.yaml, and the file of each
operator in ops/opapi. A kernel of this backend runs as it is on fake tensors, and `kernels.operators` takes the
stand-in of the operator that it calls. A kernel of torch's own operators has a stand-in where an NPU keeps others.

Not in them: CANN's workspace beyond the buffers that grow with the request. It is constant for each kernel, up to some
tens of MiB, and torch_npu keeps one for each stream (NPUWorkspaceAllocator.cpp), outside of `memory_allocated`.
"""
