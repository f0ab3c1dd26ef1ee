"""From a recipe to megatron-core's GPTModel, with the negotiated kernels plugged in through module specs.

megatron.core is imported here, so the bridge must be installed first (pretrain.bridge.megatron.install).
"""
