"""DeepSpeed 0.19 on the device of any backend. Install it before anything imports deepspeed."""

from pretrain.bridge.deepspeed.setup import connect, disconnect, has_accelerator, install

__all__ = ["connect", "disconnect", "has_accelerator", "install"]
