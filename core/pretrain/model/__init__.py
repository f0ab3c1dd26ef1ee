"""Build megatron-core's GPTModel from a recipe, with the negotiated kernels plugged in through module specs.

megatron.core is imported here, so the bridge must be installed first (pretrain.bridge.megatron.install).
"""
