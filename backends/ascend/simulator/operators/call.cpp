#include "call.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <acl/acl.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include "host_view.h"
#include "overflow.h"
#include "random.h"

extern "C" long simulator_pending();

namespace simulator {
namespace {
constexpr auto kNpu = c10::DeviceType::PrivateUse1;
}

void wait_for_stream() {
  if (!simulator_pending()) return;
  const int error = aclrtSynchronizeStream(c10_npu::getCurrentNPUStream().stream());
  TORCH_CHECK(!error, "the simulated NPU: ", aclGetRecentErrMsg());
}

Call::Call(const Signature& signature, const c10::OperatorHandle& op, torch::jit::Stack& stack)
    : signature_(signature),
      op_(op),
      stack_(stack),
      first_(stack.size() - signature.is_out.size()),
      given_(stack.begin() + static_cast<long>(first_), stack.end()) {}

void Call::run() {
  wait_for_stream();
  arguments_to_host();
  check_devices();
  round_factors();
  const c10::Device device = target();
  call_cpu(device);
  fill_empty_outputs();
  mark_overflow();
  results_to_device(device);
}

void Call::arguments_to_host() {
  for (size_t i = 0; i < given_.size(); i++) stack_[first_ + i] = to_host(given_[i], signature_.is_out[i]);
}

c10::IValue Call::to_host(const c10::IValue& value, bool is_out) {
  if (value.isTensor()) return to_host(value.toTensor(), is_out);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(to_host(tensor, false));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional<at::Tensor>(to_host(*tensor, false)) : std::nullopt);
    return list;
  }
  if (value.isDevice()) {
    device_argument_ = value.toDevice();
    return device_argument_->type() == kNpu ? c10::Device(c10::kCPU) : *device_argument_;
  }
  if (value.isGenerator() && value.toGenerator().device().type() == kNpu) {
    generator_ = value.toGenerator();
    return {};
  }
  return value;
}

at::Tensor Call::to_host(const at::Tensor& tensor, bool is_out) {
  if (!is_npu(tensor)) {
    if (tensor.defined() && tensor.dim()) other_device_ = tensor.device();  // a number may be on the CPU
    return tensor;
  }
  check_type(signature_.name.c_str(), tensor.scalar_type());
  if (!device_)
    device_ = tensor.device();
  else if (*device_ != tensor.device())
    other_device_ = tensor.device();
  if (is_out && !tensor.numel()) {  // the CPU's kernel cannot resize memory that is not its own
    empty_outputs_.push_back({tensor, at::empty(tensor.sizes(), tensor.options().device(c10::kCPU))});
    return empty_outputs_.back().host;
  }
  pairs_.push_back({tensor, host_view(tensor)});
  return pairs_.back().host;
}

void Call::round_factors() {
  if (device_)
    for (size_t i = 0; i < given_.size(); i++)
      if (signature_.is_factor[i] && stack_[first_ + i].isTensor())
        stack_[first_ + i] = as_factor(stack_[first_ + i].toTensor());
}

// Without this a tensor that was left on the CPU would go unnoticed: here all memory is the CPU's.
void Call::check_devices() const {
  TORCH_CHECK(signature_.takes_several_devices || !device_ || !other_device_,
              "Expected all tensors to be on the same device, but found at least two devices, ", *device_, " and ",
              *other_device_, "! (when calling ", signature_.name, ")");
}

c10::Device Call::target() const {
  const c10::Device device = device_argument_ ? *device_argument_ : device_.value_or(c10::Device(kNpu));
  if (device.type() != kNpu || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(kNpu).getDevice();
}

void Call::call_cpu(c10::Device device) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (signature_.is_random && device.type() == kNpu)
    with_npu_numbers(generator_, device, [&] { op_.callBoxed(&stack_); });
  else
    op_.callBoxed(&stack_);
}

void Call::fill_empty_outputs() {
  for (const Pair& output : empty_outputs_) {
    if (!output.npu.sizes().equals(output.host.sizes())) output.npu.resize_(output.host.sizes());
    if (output.host.numel()) host_view(output.npu).copy_(output.host);
  }
}

void Call::mark_overflow() const {
  if (signature_.only_moves_data || device_argument_.value_or(c10::Device(kNpu)).type() != kNpu) return;
  for (size_t i = 0; i < given_.size(); i++) {
    if (!signature_.is_written[i]) continue;
    if (given_[i].isTensor() && is_npu(given_[i].toTensor())) saturate(host_view(given_[i].toTensor()));
    if (given_[i].isTensorList())
      for (const at::Tensor& tensor : given_[i].toTensorVector())
        if (is_npu(tensor)) saturate(host_view(tensor));
  }
  for (size_t i = stack_.size() - signature_.same_as.size(); i < stack_.size(); i++) {
    if (stack_[i].isTensor()) saturate(stack_[i].toTensor());
    if (stack_[i].isTensorList())
      for (const at::Tensor& tensor : stack_[i].toTensorVector()) saturate(tensor);
  }
}

void Call::results_to_device(c10::Device device) {
  const size_t count = signature_.same_as.size(), first = stack_.size() - count;
  for (size_t i = 0; i < count; i++) {
    c10::IValue& result = stack_[first + i];
    const int same = signature_.same_as[i];
    if (same >= 0 && given_[same].isTensor()) {
      result = given_[same];
    } else if (result.isTensor()) {
      result = back(result.toTensor(), device);
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : result.toTensorVector()) list.push_back(back(tensor, device));
      result = list;
    }
  }
}

at::Tensor Call::back(const at::Tensor& result, c10::Device device) const {
  if (!result.defined() || !result.device().is_cpu()) return result;
  for (const Pair& pair : pairs_)
    if (pair.host.is_same(result)) return pair.npu;
  for (const Pair& pair : pairs_)
    if (result.has_storage() && result.storage().is_alias_of(pair.host.storage()))
      return pair.npu.as_strided(result.sizes(), result.strides(), result.storage_offset());
  return device.type() == kNpu ? to_device(result, device) : result;
}

}  // namespace simulator
