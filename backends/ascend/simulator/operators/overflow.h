// Overflow of a chip's types, and the types that it has.
#pragma once
#include <ATen/core/Tensor.h>

namespace simulator {

// Saturation, the only mode of the first generation: infinity becomes the largest number, NaN becomes 0, and the
// device's sticky flag is raised. Nothing happens in the other mode, or to other types than float16.
void saturate(const at::Tensor& host);
// A float32 factor of a matmul as the cube unit of the first generation takes it: rounded to float16.
at::Tensor as_factor(const at::Tensor& host);
void check_type(const char* operation, at::ScalarType type);  // bfloat16 came with the second generation

}  // namespace simulator
