// One call of an operator: its NPU tensors are replaced by host views, the CPU's kernel runs, and results go back.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "signature.h"

namespace simulator {

// A kernel runs on the calling thread, and so must wait for communication that its stream was told to wait for.
void wait_for_stream();

class Call {
 public:
  Call(const Signature& signature, const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void run();

 private:
  struct Pair {
    at::Tensor npu, host;
  };
  void arguments_to_host();
  c10::IValue to_host(const c10::IValue& value, bool is_out);
  at::Tensor to_host(const at::Tensor& tensor, bool is_out);
  void round_factors();
  void check_devices() const;
  c10::Device target() const;
  void call_cpu(c10::Device device);
  void fill_empty_outputs();
  void mark_overflow() const;
  void results_to_device(c10::Device device);
  at::Tensor back(const at::Tensor& result, c10::Device device) const;

  const Signature& signature_;
  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const size_t first_;              // of the arguments on the stack
  std::vector<c10::IValue> given_;  // keeps the NPU tensors alive
  std::vector<Pair> pairs_, empty_outputs_;
  std::optional<c10::Device> device_, other_device_, device_argument_;
  std::optional<at::Generator> generator_;
};

}  // namespace simulator
