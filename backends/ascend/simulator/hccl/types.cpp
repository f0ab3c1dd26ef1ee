#include "types.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../cann/device.h"

namespace simulator {
namespace {

struct Type {
  size_t size;
  const char* name;
};
Type describe(HcclDataType type) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8: return {1, "int8"};
    case HCCL_DATA_TYPE_INT16: return {2, "int16"};
    case HCCL_DATA_TYPE_INT32: return {4, "int32"};
    case HCCL_DATA_TYPE_INT64: return {8, "int64"};
    case HCCL_DATA_TYPE_UINT8: return {1, "uint8"};
    case HCCL_DATA_TYPE_UINT16: return {2, "uint16"};
    case HCCL_DATA_TYPE_UINT32: return {4, "uint32"};
    case HCCL_DATA_TYPE_UINT64: return {8, "uint64"};
    case HCCL_DATA_TYPE_FP16: return {2, "float16"};
    case HCCL_DATA_TYPE_FP32: return {4, "float32"};
    case HCCL_DATA_TYPE_FP64: return {8, "float64"};
    case HCCL_DATA_TYPE_BFP16: return {2, "bfloat16"};
    default: return {0, "an unknown type"};
  }
}

float widen(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
uint16_t narrow(float value) {  // to the nearest, ties to even
  if (std::isnan(value)) return 0x7fc0;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

template <class T>
T combine(T left, T right, HcclReduceOp operation) {
  const bool not_a_number = right != right;
  switch (operation) {
    case HCCL_REDUCE_SUM: return left + right;
    case HCCL_REDUCE_PROD: return left * right;
    case HCCL_REDUCE_MAX: return right > left || not_a_number ? right : left;
    default: return right < left || not_a_number ? right : left;
  }
}
template <class T>
void reduce_as(char* into, const char* other, size_t count, HcclReduceOp operation) {
  auto* left = reinterpret_cast<T*>(into);
  auto* right = reinterpret_cast<const T*>(other);
  for (size_t i = 0; i < count; i++) left[i] = combine(left[i], right[i], operation);
}
void reduce_bfloat16(char* into, const char* other, size_t count, HcclReduceOp operation) {
  auto* left = reinterpret_cast<uint16_t*>(into);
  auto* right = reinterpret_cast<const uint16_t*>(other);
  for (size_t i = 0; i < count; i++) left[i] = narrow(combine(widen(left[i]), widen(right[i]), operation));
}

}  // namespace

size_t size_of(HcclDataType type) { return describe(type).size; }
std::string name_of(HcclDataType type) { return describe(type).name; }
std::string name_of(HcclReduceOp operation) {
  const char* names[] = {"sum", "prod", "max", "min"};
  return names[operation];
}

// bfloat16 came with the second generation.
bool can_move(HcclDataType type) {
  return size_of(type) && !(type == HCCL_DATA_TYPE_BFP16 && simulator_first_generation());
}

// HcclAllReduce in the HCCL API of CANN 8.5, and in that of 8.0 what the product of int16 and bfloat16 says.
bool can_reduce(HcclDataType type, HcclReduceOp operation) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
    case HCCL_DATA_TYPE_INT32:
    case HCCL_DATA_TYPE_INT64:
    case HCCL_DATA_TYPE_FP16:
    case HCCL_DATA_TYPE_FP32: return true;
    case HCCL_DATA_TYPE_INT16:
    case HCCL_DATA_TYPE_BFP16: return !simulator_first_generation() && operation != HCCL_REDUCE_PROD;
    default: return false;
  }
}

void reduce(char* into, const char* other, size_t count, HcclDataType type, HcclReduceOp operation) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8: return reduce_as<int8_t>(into, other, count, operation);
    case HCCL_DATA_TYPE_INT16: return reduce_as<int16_t>(into, other, count, operation);
    case HCCL_DATA_TYPE_INT32: return reduce_as<int32_t>(into, other, count, operation);
    case HCCL_DATA_TYPE_INT64: return reduce_as<int64_t>(into, other, count, operation);
    case HCCL_DATA_TYPE_FP16: return reduce_as<_Float16>(into, other, count, operation);
    case HCCL_DATA_TYPE_BFP16: return reduce_bfloat16(into, other, count, operation);
    default: return reduce_as<float>(into, other, count, operation);
  }
}

}  // namespace simulator
