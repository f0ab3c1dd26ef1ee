"""Huawei Ascend NPUs for `pretrain`: a device and the kernels that CANN has for it."""
