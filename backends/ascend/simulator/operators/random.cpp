#include "random.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

// Of torch_npu. Not all releases register it with torch's global context.
namespace at_npu::detail {
const at::Generator& getDefaultNPUGenerator(c10::DeviceIndex device);
}

namespace simulator {
namespace {
constexpr uint64_t kNumbersACall = 4;

// Different for every seed and offset (the finalizer of splitmix64, by Sebastiano Vigna).
uint64_t mix(uint64_t seed, uint64_t offset) {
  uint64_t x = seed + (offset + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

uint64_t draw(at::Generator npu) {
  std::lock_guard<std::mutex> guard(npu.mutex());
  const uint64_t offset = npu.get_offset();
  npu.set_offset(offset + kNumbersACall);
  return mix(npu.current_seed(), offset);
}

class SavedState {  // of the CPU's generator; put back also after an exception
 public:
  explicit SavedState(at::Generator cpu) : cpu_(cpu) {
    std::lock_guard<std::mutex> guard(cpu_.mutex());
    state_ = cpu_.get_state();
  }
  ~SavedState() {
    std::lock_guard<std::mutex> guard(cpu_.mutex());
    cpu_.set_state(state_);
  }

 private:
  at::Generator cpu_;
  at::Tensor state_;
};
}  // namespace

void with_npu_numbers(const std::optional<at::Generator>& given, c10::Device device,
                      const std::function<void()>& call) {
  const uint64_t seed = draw(given ? *given : at_npu::detail::getDefaultNPUGenerator(device.index()));
  at::Generator cpu = at::detail::getDefaultCPUGenerator();
  SavedState saved(cpu);
  {
    std::lock_guard<std::mutex> guard(cpu.mutex());
    cpu.set_current_seed(seed);
  }
  call();
}

}  // namespace simulator
