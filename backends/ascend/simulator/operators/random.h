// Random numbers of the simulated NPU: the CPU's generator, seeded by the NPU generator's seed and offset.
#pragma once
#include <ATen/core/Generator.h>

#include <functional>

namespace simulator {

// Run `call` with the CPU's generator seeded, and put that generator's state back. The NPU generator's offset advances
// as torch_npu's own kernels have it do, so that its state can be saved, restored and forked.
void with_npu_numbers(const std::optional<at::Generator>& given, c10::Device device, const std::function<void()>& call);

}  // namespace simulator
