// Puts the simulated kernels into torch's dispatcher, in the place of torch_npu's own.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <unordered_set>

#include "call.h"
#include "host_view.h"
#include "overflow.h"

extern "C" bool simulator_first_generation();
extern "C" bool simulator_overflowed();
extern "C" void simulator_clear_overflow();

namespace simulator {
namespace {

struct Kernel : c10::OperatorKernel {
  explicit Kernel(const c10::OperatorHandle& op) : signature(op) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    Call(signature, op, *stack).run();
  }
  const Signature signature;
};

// Kernels of torch_npu's that allocate or describe memory and calculate nothing: they stay, so that allocator, memory
// statistics and storages are the real ones.
const std::unordered_set<std::string> kAllocates{"aten::empty",
                                                 "aten::empty_like",
                                                 "aten::empty_strided",
                                                 "aten::new_empty",
                                                 "aten::new_empty_strided",
                                                 "aten::resize_",
                                                 "aten::resize_as_",
                                                 "aten::set_",
                                                 "aten::is_set_to",
                                                 "aten::record_stream",
                                                 "aten::is_pinned",
                                                 "aten::_pin_memory",
                                                 "aten::_lazy_clone",
                                                 "aten::_efficientzerotensor",
                                                 "aten::_has_compatible_shallow_copy_type",
                                                 "aten::expand",
                                                 "aten::_nested_view_from_buffer"};

bool is_view(const c10::OperatorHandle& op) {
  for (auto tag : op.getTags())
    if (tag == at::Tag::inplace_view) return true;
  for (const auto& result : op.schema().returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  return false;
}

bool is_simulated(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  if (op.operator_name().name.rfind("aten::", 0) != 0 || !op.hasSchema()) return false;
  if (is_view(op) || kAllocates.count(op.operator_name().name)) return false;
  const bool cpu = op.hasKernelForDispatchKey(Key::CPU);
  const bool composite = op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd) ||
                         op.hasKernelForDispatchKey(Key::CompositeImplicitAutograd);
  const bool structured = op.hasKernelForDispatchKey(Key::CompositeExplicitAutogradNonFunctional);
  const bool npu = op.hasKernelForDispatchKey(Key::PrivateUse1);
  // What torch_npu has no kernel for is composed of other operators, and runs as that composition.
  return npu ? cpu || composite || structured : cpu && !composite;
}

int64_t install() {
  static auto& library =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  int64_t installed = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !is_simulated(*op)) continue;
    library.impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(*op)));
    installed++;
  }
  return installed;
}

at::Tensor host(const at::Tensor& tensor) {
  wait_for_stream();
  return is_npu(tensor) ? host_view(tensor) : tensor;
}
at::Tensor factor(const at::Tensor& tensor) { return as_factor(host(tensor)); }
void saturate_(const at::Tensor& tensor) { saturate(host(tensor)); }

}  // namespace
}  // namespace simulator

// What the kernels that are written in Python need, see ascend_simulator/kernels.
TORCH_LIBRARY(ascend_simulator, library) {
  library.def("install() -> int", simulator::install);
  library.def("host(Tensor tensor) -> Tensor", simulator::host);
  library.def("saturate_(Tensor tensor) -> ()", simulator::saturate_);
  library.def("factor(Tensor tensor) -> Tensor", simulator::factor);
  library.def("check_type(str operation, ScalarType type) -> ()",
              [](std::string operation, at::ScalarType type) { simulator::check_type(operation.c_str(), type); });
  library.def("first_generation() -> bool", [] { return simulator_first_generation(); });
  library.def("overflowed() -> bool", [] { return simulator_overflowed(); });
  library.def("clear_overflow() -> ()", [] { simulator_clear_overflow(); });
}
