#include "signature.h"

#include <unordered_set>

namespace simulator {
namespace {
using Names = std::unordered_set<std::string>;

// Copies between devices, and indices that torch allows on the CPU.
const Names kSeveralDevices{
    "aten::copy_",          "aten::_to_copy",         "aten::_copy_from",    "aten::_copy_from_and_resize",
    "aten::_foreach_copy_", "aten::_foreach_copy",    "aten::index",         "aten::index_put",
    "aten::index_put_",     "aten::_index_put_impl_", "aten::_unsafe_index", "aten::_unsafe_index_put"};

const Names kMoves{"aten::fill_",
                   "aten::full",
                   "aten::full_like",
                   "aten::masked_fill",
                   "aten::masked_fill_",
                   "aten::where",
                   "aten::cat",
                   "aten::stack",
                   "aten::clone",
                   "aten::index",
                   "aten::index_select",
                   "aten::gather",
                   "aten::scatter",
                   "aten::scatter_",
                   "aten::index_put_",
                   "aten::_index_put_impl_",
                   "aten::constant_pad_nd",
                   "aten::repeat",
                   "aten::roll",
                   "aten::flip",
                   "aten::triu",
                   "aten::triu_",
                   "aten::tril",
                   "aten::tril_",
                   "aten::scalar_tensor",
                   "aten::new_full"};

// Matmuls, and the arguments that are added to the result and are no factor.
const Names kProducts{"aten::mm",      "aten::bmm",      "aten::addmm",    "aten::addmm_",    "aten::baddbmm",
                      "aten::addbmm",  "aten::addbmm_",  "aten::baddbmm_", "aten::mv",        "aten::addmv",
                      "aten::addmv_",  "aten::dot",      "aten::vdot",     "aten::matmul",    "aten::linear",
                      "aten::einsum",  "aten::inner",    "aten::chain_matmul", "aten::_addmm_activation",
                      "aten::convolution", "aten::convolution_backward", "aten::linear_backward"};

bool is_added(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  if (argument.name() == "bias") return true;
  for (const auto& other : schema.arguments())
    if (other.name() == "beta") return argument.name() == "self";
  return false;
}

int argument_of(const c10::Argument& result, const std::vector<c10::Argument>& arguments) {
  const auto* alias = result.alias_info();
  if (!alias || !alias->isWrite()) return -1;
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto* other = arguments[i].alias_info();
    if (other && other->isWrite() && other->beforeSets() == alias->beforeSets()) return static_cast<int>(i);
  }
  return -1;
}
}  // namespace

Signature::Signature(const c10::OperatorHandle& op) : name(toString(op.operator_name())) {
  const auto& schema = op.schema();
  only_moves_data = kMoves.count(schema.name());
  takes_several_devices = kSeveralDevices.count(schema.name());
  for (auto tag : op.getTags()) is_random = is_random || tag == at::Tag::nondeterministic_seeded;
  for (const auto& argument : schema.arguments()) {
    const bool written = argument.alias_info() && argument.alias_info()->isWrite();
    is_random = is_random || argument.type()->str().find("Generator") != std::string::npos;
    is_written.push_back(written);
    is_factor.push_back(kProducts.count(schema.name()) && !written && !is_added(schema, argument));
    is_out.push_back(written && argument.kwarg_only() && argument.type()->kind() == c10::TypeKind::TensorType);
  }
  for (const auto& result : schema.returns()) same_as.push_back(argument_of(result, schema.arguments()));
}

}  // namespace simulator
