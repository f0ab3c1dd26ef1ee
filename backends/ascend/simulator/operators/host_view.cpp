#include "host_view.h"

#include <ATen/ATen.h>

namespace simulator {

at::Tensor host_view(const at::Tensor& npu) {
  auto* from = npu.unsafeGetTensorImpl();
  const c10::Storage& memory = from->unsafe_storage();
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), memory.nbytes(),
      c10::DataPtr(memory.unsafeGetStorageImpl()->mutable_data_ptr().get(), c10::kCPU), nullptr, false));
  auto host = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                       npu.dtype());
  auto* to = host.unsafeGetTensorImpl();
  to->set_sizes_and_strides(npu.sizes(), npu.strides());
  to->set_storage_offset(npu.storage_offset());
  if (npu.is_conj()) host._set_conj(true);
  if (npu.is_neg()) host._set_neg(true);
  if (from->is_wrapped_number()) to->set_wrapped_number(true);
  return host;
}

at::Tensor to_device(const at::Tensor& host, c10::Device device) {
  const at::Tensor plain = host.resolve_conj().resolve_neg();
  at::Tensor npu = at::empty_strided(plain.sizes(), plain.strides(), plain.options().device(device));
  if (plain.numel()) host_view(npu).copy_(plain);
  return npu;
}

}  // namespace simulator
