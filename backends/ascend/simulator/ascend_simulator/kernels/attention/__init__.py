"""npu_fusion_attention and the newer operator of the same kernel. Importing them registers them."""

from ascend_simulator.kernels.attention import fusion_attention, fusion_attention_v3  # noqa: F401
