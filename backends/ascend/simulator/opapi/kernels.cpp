// The few CANN kernels that torch_npu's C++ code calls by name, without torch's dispatcher, as CPU operators.
// CANN has every kernel as a pair: one function plans the call, a second runs the plan on a stream.
#include <ATen/ATen.h>
#include <acl/acl_base.h>

#include <functional>
#include <memory>

#include "../operators/overflow.h"

extern "C" int aclrtSynchronizeStream(void* stream);
#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

struct Tensor {
  std::vector<int64_t> sizes, strides;
  int64_t offset;
  at::ScalarType type;
  char* data;
};
using Numbers = std::vector<int64_t>;
using Tensors = std::vector<Tensor*>;
using Plan = std::function<void()>;

at::ScalarType type_of(aclDataType type) {
  switch (type) {
    case ACL_FLOAT: return at::kFloat;
    case ACL_FLOAT16: return at::kHalf;
    case ACL_BF16: return at::kBFloat16;
    case ACL_DOUBLE: return at::kDouble;
    case ACL_INT8: return at::kChar;
    case ACL_INT16: return at::kShort;
    case ACL_INT32: return at::kInt;
    case ACL_INT64: return at::kLong;
    case ACL_UINT8: return at::kByte;
    case ACL_BOOL: return at::kBool;
    default: TORCH_CHECK(false, "the simulated libopapi has no data type ", static_cast<int>(type));
  }
}

at::Tensor view(const void* handle) {
  const auto& tensor = *static_cast<const Tensor*>(handle);
  const auto options = at::TensorOptions(tensor.type);
  return at::from_blob(tensor.data + tensor.offset * options.dtype().itemsize(), tensor.sizes, tensor.strides, options);
}
const at::Scalar& number(const void* handle) { return *static_cast<const at::Scalar*>(handle); }
const Numbers& numbers(const void* handle) { return *static_cast<const Numbers*>(handle); }

void copy(const void* to, const void* from) {
  view(to).copy_(view(from));
  if (view(to).scalar_type() != view(from).scalar_type()) simulator::saturate(view(to));
}

int plan(Plan run, uint64_t* workspace, void** executor) {
  *workspace = 0;
  *executor = new Plan(std::move(run));
  return 0;
}
int run(void* executor, void* stream) {
  const std::unique_ptr<Plan> plan(static_cast<Plan*>(executor));
  if (const int error = aclrtSynchronizeStream(stream)) return error;
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  (*plan)();
  return 0;
}

}  // namespace

EXPORTED void* aclCreateTensor(const int64_t* sizes, uint64_t dimensions, aclDataType type, const int64_t* strides,
                               int64_t offset, aclFormat, const int64_t*, uint64_t, void* data) {
  return new Tensor{
      {sizes, sizes + dimensions}, {strides, strides + dimensions}, offset, type_of(type), static_cast<char*>(data)};
}
EXPORTED int aclDestroyTensor(void* tensor) {
  delete static_cast<Tensor*>(tensor);
  return 0;
}
EXPORTED void* aclCreateScalar(void* value, aclDataType type) {
  return new at::Scalar(at::from_blob(value, {}, at::TensorOptions(type_of(type))).item());
}
EXPORTED int aclDestroyScalar(void* scalar) {
  delete static_cast<at::Scalar*>(scalar);
  return 0;
}
EXPORTED void* aclCreateIntArray(const int64_t* values, uint64_t size) { return new Numbers(values, values + size); }
EXPORTED int aclDestroyIntArray(void* array) {
  delete static_cast<Numbers*>(array);
  return 0;
}
EXPORTED void* aclCreateTensorList(void** tensors, uint64_t size) {
  return new Tensors(reinterpret_cast<Tensor**>(tensors), reinterpret_cast<Tensor**>(tensors) + size);
}
EXPORTED int aclDestroyTensorList(void* list) {
  for (Tensor* tensor : *static_cast<Tensors*>(list)) delete tensor;
  delete static_cast<Tensors*>(list);
  return 0;
}

EXPORTED int aclnnConstantPadNdGetWorkspaceSize(void* in, void* pad, void* value, void* out, uint64_t* workspace,
                                                void** executor) {
  return plan([=] { view(out).copy_(at::constant_pad_nd(view(in), numbers(pad), number(value))); }, workspace,
              executor);
}
EXPORTED int aclnnConstantPadNd(void*, uint64_t, void* executor, void* stream) { return run(executor, stream); }

EXPORTED int aclnnInplaceCopyGetWorkspaceSize(void* to, void* from, uint64_t* workspace, void** executor) {
  return plan([=] { copy(to, from); }, workspace, executor);
}
EXPORTED int aclnnInplaceCopy(void*, uint64_t, void* executor, void* stream) { return run(executor, stream); }

EXPORTED int aclnnCastGetWorkspaceSize(void* from, int, void* to, uint64_t* workspace, void** executor) {
  return plan([=] { copy(to, from); }, workspace, executor);
}
EXPORTED int aclnnCast(void*, uint64_t, void* executor, void* stream) { return run(executor, stream); }

EXPORTED int aclnnInplaceZeroGetWorkspaceSize(void* tensor, uint64_t* workspace, void** executor) {
  return plan([=] { view(tensor).zero_(); }, workspace, executor);
}
EXPORTED int aclnnInplaceZero(void*, uint64_t, void* executor, void* stream) { return run(executor, stream); }

EXPORTED int aclnnInplaceFillScalarGetWorkspaceSize(void* tensor, void* value, uint64_t* workspace, void** executor) {
  return plan([=] { view(tensor).fill_(number(value)); }, workspace, executor);
}
EXPORTED int aclnnInplaceFillScalar(void*, uint64_t, void* executor, void* stream) { return run(executor, stream); }
