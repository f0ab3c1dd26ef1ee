#include "overflow.h"

#include <ATen/ATen.h>

extern "C" bool simulator_saturates();
extern "C" bool simulator_first_generation();
extern "C" void simulator_raise_overflow();
extern "C" const char* aclrtGetSocName();

namespace simulator {

void saturate(const at::Tensor& host) {
  if (!host.defined() || host.scalar_type() != at::kHalf || !host.numel() || !simulator_saturates()) return;
  if (at::isfinite(host).all().item<bool>()) return;
  constexpr double kLargest = 65504;
  at::nan_to_num_(const_cast<at::Tensor&>(host), 0.0, kLargest, -kLargest);
  simulator_raise_overflow();
}

at::Tensor as_factor(const at::Tensor& host) {
  if (!host.defined() || host.scalar_type() != at::kFloat || !simulator_first_generation()) return host;
  const at::Tensor half = host.to(at::kHalf);
  saturate(half);
  return half.to(at::kFloat);
}

void check_type(const char* operation, at::ScalarType type) {
  TORCH_CHECK(type != at::kBFloat16 || !simulator_first_generation(), operation, ": ", aclrtGetSocName(),
              " has no bfloat16: its kernels take float16 and float32");
}

}  // namespace simulator
