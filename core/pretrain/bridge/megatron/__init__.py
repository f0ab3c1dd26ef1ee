"""Run megatron-core 0.16.1 on the device of any backend. Install this before anything imports megatron.core."""

from pretrain.bridge.megatron.setup import device_type, install, prepare_to_read

__all__ = ["device_type", "install", "prepare_to_read"]
