// The same bytes, seen as a tensor of the simulated NPU and as one of the CPU.
#pragma once
#include <ATen/core/Tensor.h>

namespace simulator {

inline bool is_npu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}
at::Tensor host_view(const at::Tensor& npu);                       // no copy: sizes, strides and offset are the same
at::Tensor to_device(const at::Tensor& host, c10::Device device);  // fresh memory from torch_npu's allocator

}  // namespace simulator
